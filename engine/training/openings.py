"""First words from which the target writes a user's turn itself, by kind and language.

An empty opening leaves the whole turn to the target. They steer the topic no further than these words, so that the
data holds what the target expects to be asked.
"""

from collections.abc import Mapping

OPENINGS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("chat", "en"): (
        *[""] * 5,
        *("How can I", "How do I", "Why does", "Why do", "What is the difference between", "What should I", "I am"),
        *("I have", "I want to", "I need", "My", "My daughter", "My son", "My boss", "My neighbour", "Our", "We are"),
        *("Can you explain", "Can you help me", "Could you", "Please write an email", "Please help me", "Give me"),
        *("Suggest", "Is it", "Should I", "When", "What are some", "Explain", "Tell me", "Help me", "I'm trying to"),
        *("I've been", "Do you know", "Write a letter", "Write a short email to", "Draft a message"),
        *("Give me tips for", "What would you", "Which"),
    ),
    ("story", "en"): (
        *("Write a short story about", "Write a story about", "Write a short story in which", "Tell me a story about"),
        *("Tell me a bedtime story about", "Write a poem about", "Write a short poem", "Write a dialogue between"),
        *("Write a letter from", "Write the opening scene of", "Continue this story:", "Invent", "Imagine", "Begin a"),
        *("Write a fairy tale about", "Write a song about", "Write a scene in which", "Write a monologue", "Compose"),
        *("Create a story", "Write a funny story about", "Write a fable about", "Write the first page of a novel"),
        "Describe",
    ),
    ("chat", "de"): (
        *("Wie kann ich", "Was ist der Unterschied zwischen", "Ich habe", "Ich möchte", "Warum", "Kannst du mir"),
        *("Mein", "Meine", "Wir", "Was soll ich", "Bitte schreib eine E-Mail", "Erkläre", "Gib mir Tipps", "Welche"),
        *("Wann", "Unser"),
    ),
    ("story", "de"): (
        *("Schreib eine kurze Geschichte über", "Erzähl mir eine Geschichte über", "Schreib ein Gedicht über"),
        *("Schreibe ein Märchen über", "Schreib einen Dialog zwischen", "Erfinde", "Schreib einen Brief an"),
        *("Erzähle", "Schreib die erste Szene"),
    ),
    ("chat", "fr"): (
        *("Comment", "Comment puis-je", "Pourquoi", "Quelle est la différence entre", "Je voudrais", "J'ai"),
        *("Je suis", "Mon", "Ma", "Nous", "Peux-tu m'expliquer", "Peux-tu m'aider", "Donne-moi", "Est-ce que"),
        *("Quels sont", "Écris un courriel"),
    ),
    ("story", "fr"): (
        *("Écris une courte histoire sur", "Raconte l'histoire de", "Raconte-moi", "Écris un poème sur"),
        *("Écris un conte", "Écris un dialogue entre", "Imagine", "Écris une lettre", "Invente"),
    ),
    ("chat", "es"): (
        *("¿Cómo puedo", "¿Por qué", "¿Qué es", "¿Cuál es la diferencia entre", "Quiero", "Tengo", "Mi"),
        *("Me gustaría", "¿Puedes explicarme", "Necesito", "Dame", "Estoy", "Nosotros", "¿Qué debo"),
        *("Escribe un correo", "¿Es mejor"),
    ),
    ("story", "es"): (
        *("Escribe un cuento corto sobre", "Cuéntame una historia sobre", "Escribe un poema sobre", "Inventa"),
        *("Escribe un diálogo entre", "Imagina", "Escribe una carta", "Cuenta", "Escribe la primera escena"),
    ),
    ("chat", "it"): (
        *("Come posso", "Perché", "Qual è la differenza tra", "Vorrei", "Ho", "Mio", "Mia", "Puoi spiegarmi"),
        *("Puoi aiutarmi", "Dammi", "Che cosa", "Sono", "Abbiamo", "Quali sono", "Scrivi una mail"),
    ),
    ("story", "it"): (
        *("Scrivi un racconto breve su", "Racconta la storia di", "Scrivi una poesia su", "Scrivi una favola"),
        *("Scrivi un dialogo tra", "Inventa", "Immagina", "Scrivi una lettera"),
    ),
    ("chat", "pt"): (
        *("Como posso", "Por que", "Qual é a diferença entre", "Eu quero", "Tenho", "Meu", "Minha"),
        *("Você pode explicar", "Preciso", "Dê-me", "O que é", "Estou", "Nós", "Quais são", "Escreva um e-mail"),
    ),
    ("story", "pt"): (
        *("Escreva um conto curto sobre", "Conte uma história sobre", "Escreva um poema sobre", "Invente"),
        *("Escreva um diálogo entre", "Imagine", "Escreva uma carta", "Faça um poema"),
    ),
    ("chat", "nl"): (
        *("Hoe kan ik", "Waarom", "Wat is het verschil tussen", "Ik wil", "Ik heb", "Mijn", "Onze"),
        *("Kun je uitleggen", "Kun je me helpen", "Geef me", "Wat zijn", "Welke", "Wij", "Ik ben"),
        "Schrijf een e-mail",
    ),
    ("story", "nl"): (
        *("Schrijf een kort verhaal over", "Vertel een verhaal over", "Schrijf een gedicht over", "Verzin"),
        *("Schrijf een sprookje over", "Schrijf een dialoog tussen", "Schrijf een brief", "Vertel"),
    ),
    ("code", "code"): (
        *("Write a Python function that", "Write a function that", "Write a Python script that", "Implement"),
        *("Write a Python class", "Write a JavaScript function that", "Write an SQL query that", "Create a Python"),
        *("Write a bash script", "How do I write a Python", "Write a unit test for", "Write HTML"),
        *("Write a C program", "Write a Java class", "Explain this code:\n```python\n", "Write a regular expression"),
    ),
    ("code-edit", "code"): (
        *("```python\nimport", "```python\ndef", "```python\nclass", "```python\nfrom", "```javascript\n"),
        *("```js\nfunction", "```sql\nSELECT", "```yaml\n", "```json\n{", "```html\n<", "```css\n", "```bash\n"),
        *("```go\nfunc", "```java\npublic class", "```typescript\nexport", "```c\n#include"),
        *("Here is my code:\n```python\n", "Refactor this function:\n```python\ndef"),
    ),
    ("extract", "code"): (
        *("Extract the following information as JSON", "Extract the names and dates from the text", "Make a CSV"),
        *("Convert this text to JSON", "Return a JSON object with the keys", "Make a table", "List"),
        *("Create a markdown table", "Give me a JSON list", "Turn this message into JSON", "Summarise as JSON"),
        *("Create a table comparing", "Give me a numbered list"),
    ),
}
