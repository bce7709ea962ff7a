"""The slow loop: settings that no cycle can choose for itself, searched by experiment against production."""
