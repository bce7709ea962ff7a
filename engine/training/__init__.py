"""Training of the learned drafters: text from the target itself, and distillation from it."""
