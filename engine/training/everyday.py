"""Templates and word lists of everyday questions and stories, in the languages that people write to a small model in.

A template's fields are named for the lists below; `fill` draws one entry for each. They hold none of the workload's
prompts, which `engine.training.exclusion` checks.
"""

import random
import re
from collections.abc import Mapping

_FIELD = re.compile(r"\{(\w+)\}")

CHAT: Mapping[str, tuple[str, ...]] = {
    "en": (
        "How do I {goal}? {limit}",
        "I want to {goal}, but {obstacle}. What should I do first?",
        "I would like to {goal}. {limit}",
        "My {relative} wants to {goal} and asked me for advice. What would you say?",
        "Explain {subject} to {listener}.",
        "What is {subject}, and why does it matter?",
        "Write {message} to my {recipient} about {matter}.",
        "Please write {message} to my {recipient}: {matter}. Keep it polite.",
        "Give me five tips to {goal}.",
        "What are the pros and cons of {choice}?",
        "We are planning {event} and {obstacle}. Can you suggest a plan?",
        "Should I choose {choice}? I care most about {value}.",
        "Make a list of things I need for {event}.",
        "I keep trying to {goal} and it does not work because {obstacle}. Any ideas?",
        "What is the best way to {goal} when {obstacle}?",
        "Can you recommend a simple recipe with {food} and {food}?",
        "How long does it take to {goal}?",
        "Tell me three interesting facts about {subject}.",
    ),
    "de": (
        "Wie kann ich {goal}?",
        "Ich möchte {goal}, aber {obstacle}. Was rätst du mir?",
        "Erkläre mir {subject} in einfachen Worten.",
        "Gib mir fünf Tipps, wie ich {goal} kann.",
        "Was ist {subject}?",
        "Schreib eine kurze E-Mail an {recipient}: {matter}.",
        "Hast du ein einfaches Rezept mit {food} und {food}?",
        "Warum ist {subject} so wichtig?",
    ),
    "fr": (
        "Comment {goal} ?",
        "Je voudrais {goal}, mais {obstacle}. Que me conseilles-tu ?",
        "Explique-moi {subject} avec des mots simples.",
        "Donne-moi cinq conseils pour {goal}.",
        "Qu'est-ce que {subject} ?",
        "Écris un court message à {recipient} : {matter}.",
        "As-tu une recette simple avec {food} et {food} ?",
        "Pourquoi {subject} est si important ?",
    ),
    "es": (
        "¿Cómo puedo {goal}?",
        "Quiero {goal}, pero {obstacle}. ¿Qué me aconsejas?",
        "Explícame {subject} con palabras sencillas.",
        "Dame cinco consejos para {goal}.",
        "¿Qué es {subject}?",
        "Escribe un mensaje corto a {recipient}: {matter}.",
        "¿Tienes una receta fácil con {food} y {food}?",
        "¿Por qué es tan importante {subject}?",
    ),
    "it": (
        "Come posso {goal}?",
        "Vorrei {goal}, ma {obstacle}. Che cosa mi consigli?",
        "Spiegami {subject} con parole semplici.",
        "Dammi cinque consigli per {goal}.",
        "Che cos'è {subject}?",
        "Scrivi un breve messaggio a {recipient}: {matter}.",
        "Hai una ricetta facile con {food} e {food}?",
        "Perché {subject} è così importante?",
    ),
    "pt": (
        "Como posso {goal}?",
        "Quero {goal}, mas {obstacle}. O que você aconselha?",
        "Explique {subject} com palavras simples.",
        "Dê cinco dicas para {goal}.",
        "O que é {subject}?",
        "Escreva uma mensagem curta para {recipient}: {matter}.",
        "Você tem uma receita fácil com {food} e {food}?",
        "Por que {subject} é tão importante?",
    ),
    "nl": (
        "Hoe kan ik {goal}?",
        "Ik wil {goal}, maar {obstacle}. Wat raad je me aan?",
        "Leg {subject} uit in eenvoudige woorden.",
        "Geef me vijf tips om {goal}.",
        "Wat is {subject}?",
        "Schrijf een kort bericht aan {recipient}: {matter}.",
        "Heb je een makkelijk recept met {food} en {food}?",
        "Waarom is {subject} zo belangrijk?",
    ),
}

STORY: Mapping[str, tuple[str, ...]] = {
    "en": (
        "Write a short story about {hero} who {deed} {place}.",
        "Tell me a bedtime story: {hero} {deed} {place}.",
        "Write a poem about {hero} {place}.",
        "Write a dialogue between {hero} and {hero}, who meet {place}.",
        "Write a letter from {hero} to {hero}. It should mention {thing}.",
        "Begin a novel in which {hero} finds {thing} {place}. {tone}",
        "Write the opening scene: {hero} {deed} {place}. {tone}",
        "Invent a legend that explains why {hero} {deed}.",
        "Write a funny story in which {hero} and {hero} fight over {thing}.",
        "Describe {place} through the eyes of {hero}. {tone}",
        "Write a song about {thing} and {hero}.",
        "Continue the story: {hero_start} had never seen {thing} before. It lay {place}, and",
        "Give me a fable with {hero} and {hero}, and a moral at the end.",
        "Write a story of two paragraphs about {thing} that was lost {place}. {tone}",
        "Write a diary entry of {hero} who {deed}.",
        "I need a short tale for children about {hero}, {thing} and a long night {place}.",
    ),
    "de": (
        "Schreib eine kurze Geschichte über {hero} {place}.",
        "Erzähl eine Gutenachtgeschichte mit {thing}, {place}.",
        "Schreib ein Gedicht über {thing}.",
        "Schreibe ein Märchen über {hero} und {thing}.",
        "Schreib einen Dialog über {thing}, {place}.",
        "Erfinde eine lustige Geschichte über {hero} und {hero}.",
    ),
    "fr": (
        "Écris une courte histoire sur {hero} {place}.",
        "Raconte une histoire pour dormir avec {thing}, {place}.",
        "Écris un poème sur {thing}.",
        "Écris un conte sur {hero} et {thing}.",
        "Écris un dialogue entre {hero} et {hero} {place}.",
        "Invente une histoire drôle sur {hero} et {hero}.",
    ),
    "es": (
        "Escribe un cuento corto sobre {hero} {place}.",
        "Cuéntame un cuento para dormir con {thing}, {place}.",
        "Escribe un poema sobre {thing}.",
        "Escribe una fábula sobre {hero} y {thing}.",
        "Escribe un diálogo entre {hero} y {hero} {place}.",
        "Inventa una historia graciosa sobre {hero} y {hero}.",
    ),
    "it": (
        "Scrivi un racconto breve su {hero} {place}.",
        "Racconta una storia della buonanotte con {thing}, {place}.",
        "Scrivi una poesia su {thing}.",
        "Scrivi una favola su {hero} e {thing}.",
        "Scrivi un dialogo tra {hero} e {hero} {place}.",
        "Inventa una storia divertente su {hero} e {hero}.",
    ),
    "pt": (
        "Escreva um conto curto sobre {hero} {place}.",
        "Conte uma história para dormir com {thing}, {place}.",
        "Escreva um poema sobre {thing}.",
        "Escreva uma fábula sobre {hero} e {thing}.",
        "Escreva um diálogo entre {hero} e {hero} {place}.",
        "Invente uma história engraçada sobre {hero} e {hero}.",
    ),
    "nl": (
        "Schrijf een kort verhaal over {hero} {place}.",
        "Vertel een verhaaltje voor het slapengaan met {thing}, {place}.",
        "Schrijf een gedicht over {thing}.",
        "Schrijf een sprookje over {hero} en {thing}.",
        "Schrijf een dialoog tussen {hero} en {hero} {place}.",
        "Verzin een grappig verhaal over {hero} en {hero}.",
    ),
}


def fill(template: str, words: Mapping[str, tuple[str, ...]], draw: random.Random) -> str:
    """`template` with every field replaced by a drawn entry of its list; a sentence begins with a capital."""
    text = _FIELD.sub(lambda match: draw.choice(words[match.group(1)]), template)
    return text[0].upper() + text[1:]
