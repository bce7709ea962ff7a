"""Prompts that ask for structure: a record to turn into JSON, or a table or list to write, with drawn facts."""

import random
from collections.abc import Mapping

from engine.training.everyday import fill

_WORDS: Mapping[str, tuple[str, ...]] = {
    "name": (
        *("Maria Lopez", "John Becker", "Priya Nair", "Tomasz Kowal", "Emma Dubois", "Luca Bianchi", "Ana Sousa"),
        *("Peter Jansen", "Sara Lind", "Omar Haddad", "Yuki Tanaka", "Grace Mwangi", "Karl Vogel", "Nina Petrova"),
        *("Paul Martin", "Elena Ruiz", "Hannah Cole", "Victor Hugo Reis", "Mia van Dijk", "Samuel Osei"),
    ),
    "city": (
        *("Hamburg", "Lyon", "Porto", "Utrecht", "Bologna", "Sevilla", "Leeds", "Oslo", "Graz", "Boston", "Nairobi"),
        *("Toronto", "Dublin", "Antwerp"),
    ),
    "company": (
        *("Northwind Tools", "Blue Harbour Ltd", "Kessler GmbH", "Atelier Rivet", "Sol y Mar SL", "Green Fork"),
        *("Delta Print", "Orchard Systems", "Mill Lane Bakery", "Pixel Forge", "Casa Verde"),
    ),
    "item": (
        *("desk lamp", "garden hose", "office chair", "coffee grinder", "water bottle", "pair of gloves", "notebook"),
        *("rain jacket", "keyboard", "wall clock", "bread knife", "backpack", "tent", "phone case"),
    ),
    "amount": ("19.90", "45.00", "129.50", "7.25", "310.00", "88.40", "1250.00", "64.99", "15.75", "420.10"),
    "count": ("2", "3", "4", "5", "6", "8", "10", "12"),
    "code": ("A-2041", "77-310", "INV-00912", "RX55-8", "2023-4410", "K-19", "PO-6612", "TK-330", "B7-104"),
    "date": (
        *("3 May 2023", "12 June 2022", "28 February 2024", "7 October 2021", "19 January 2023", "30 August 2022"),
        *("1 December 2023", "2023-07-14", "2022-11-02", "15 April 2024"),
    ),
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "time": ("8:15", "9:30", "10:00", "13:45", "16:20", "18:00", "19:30"),
    "job": ("electrician", "data analyst", "gardener", "primary teacher", "welder", "pharmacist", "translator", "chef"),
    "skill": ("Excel", "first aid", "welding", "Python", "customer service", "forklift driving", "French", "planning"),
    "mood": ("great", "disappointing", "fine, nothing special", "wonderful", "too noisy", "much better than expected"),
    "phone": ("0171 555 0199", "+44 20 7946 0018", "555-0142", "06 12 34 56 78", "+31 6 1234 5678"),
    "street": ("12 Mill Road", "Gartenweg 4", "8 rue des Lilas", "Calle Mayor 31", "Via Verdi 9", "55 Oak Avenue"),
    "service": ("billing", "search", "mailer", "gateway", "scheduler", "inventory"),
    "error": ("connection refused", "timeout after 30 s", "permission denied", "out of memory", "invalid token"),
    "ask": (
        *("Extract the data as JSON with the keys {keys}.", "Return only a JSON object with {keys}."),
        *("Turn this into JSON. Keys: {keys}.", "Read the text and fill in this JSON: {keys}."),
        *("Give me JSON with the fields {keys} and nothing else.", "Summarise as JSON ({keys})."),
    ),
}

_RECORDS: tuple[tuple[str, str], ...] = (
    (
        "order, customer, items, total, delivery_day",
        "Hello {name},\n\nthank you for order {code}. We packed {count} x {item} and {count} x {item}. The total is "
        "{amount} euros. The driver comes on {day} at {time}.\n\nBest wishes,\n{company}",
    ),
    (
        "name, job, city, years, skills",
        "{name}, {job} from {city}. I have worked for {company} for {count} years and before that for {company}. "
        "I know {skill}, {skill} and {skill}.",
    ),
    (
        "invoice, company, client, date, amount, due",
        "{company}\n{street}, {city}\n\nInvoice {code}\nClient: {name}\nDate: {date}\n{count} x {item}: {amount}\n"
        "Please pay by {date}.",
    ),
    (
        "title, day, start, end, place, people",
        "Hi all, the planning meeting moves to {day}, {time} to {time}, at {street}. {name} and {name} will join, "
        "{name} is on holiday.",
    ),
    (
        "service, error, first_seen, retries, solved",
        "{date} {time} {service}: starting\n{date} {time} {service}: {error}\n{date} {time} {service}: retry {count}\n"
        "{date} {time} {service}: {error}\n{date} {time} {service}: back to normal",
    ),
    (
        "product, rating, sentiment, problem",
        "I bought the {item} from {company} on {date}. It is {mood}. After {count} weeks the handle came off. "
        "I give it {count} of 10 points. {name}",
    ),
    (
        "rooms, city, rent, deposit, free_from, contact",
        "Flat with {count} rooms in {city}, near the park, {street}. Rent {amount}, deposit {amount}. Free from "
        "{date}. Call {name}, {phone}.",
    ),
    (
        "event, city, date, visitors, price",
        "On {date} the summer fair of {city} opens at {time}. {company} expects {count}00 visitors. Tickets cost "
        "{amount}, children pay nothing. Questions to {name}, {phone}.",
    ),
    (
        "kunde, bestellung, artikel, betrag, datum",
        "Guten Tag {name},\n\nIhre Bestellung {code} vom {date} ist unterwegs: {count} x {item}. Der Betrag von "
        "{amount} Euro wird abgebucht.\n\n{company}, {city}",
    ),
    (
        "nom, ville, telephone, produit, prix",
        "Bonjour, je m'appelle {name} et j'habite à {city}. Je voudrais {count} x {item} au prix de {amount} euros. "
        "Mon numéro : {phone}. Merci !",
    ),
    (
        "cliente, ciudad, fecha, hora, motivo",
        "Hola, soy {name}, de {city}. Necesito una cita el {date} a las {time} porque mi {item} no funciona. "
        "Mi teléfono es {phone}.",
    ),
    (
        "nome, azienda, prodotto, quantita, totale",
        "Buongiorno, sono {name} di {company}. Ordiniamo {count} x {item}, totale {amount} euro, consegna {date} a "
        "{city}.",
    ),
    (
        "nome, cidade, data, valor, produto",
        "Olá, aqui é {name}, de {city}. Comprei {count} x {item} em {date} por {amount} reais na {company}.",
    ),
    (
        "naam, plaats, datum, tijd, bedrag",
        "Beste {name}, uw afspraak bij {company} in {city} is op {date} om {time}. De kosten zijn {amount} euro.",
    ),
)

_TABLES: tuple[str, ...] = (
    "Make a markdown table with the columns name, city and job for {name}, {name} and {name}. Invent the cells.",
    "Write a CSV with {count} products of {company}: id, product, price, stock.",
    "Give me a JSON list of {count} people with name, age and city.",
    "Write a YAML file with the opening hours of {company} from Monday to Saturday.",
    "Compare a {item} and a {item} in a table with price, weight and use.",
    "Make a weekly plan for a {job} as a table with day, morning and afternoon.",
    "Write a JSON schema for a record with the fields {keys_free}.",
    "List {count} steps to become a {job}, numbered, one line each.",
    "Make a table of {count} countries with capital, language and population.",
    "Write a shopping list for {count} people as a markdown list with amounts.",
    "Create an HTML table with three rows: {item}, {item}, {item} and their prices.",
    "Write an INSERT statement for {count} rows of the table customers(name, city, joined).",
)
_KEYS_FREE = ("id, name and price", "title, author and year", "host, port and enabled", "from, to and weight")


def draw_structured(draw: random.Random) -> str:
    """The text of one user turn."""
    if draw.random() < 0.3:
        return fill(draw.choice(_TABLES), {**_WORDS, "keys_free": _KEYS_FREE}, draw)
    keys, record = draw.choice(_RECORDS)
    names = keys.split(", ")
    if draw.random() < 0.3:
        draw.shuffle(names)
    quoted = ", ".join(f'"{name}"' for name in names) if draw.random() < 0.5 else ", ".join(names)
    ask = draw.choice(_WORDS["ask"]).replace("{keys}", quoted)
    text = fill(record, _WORDS, draw)
    return f"{ask}\n\n{text}" if draw.random() < 0.8 else f"{text}\n\n{ask}"
