"""The word lists that `engine.training.everyday` fills its templates with, by language."""

from collections.abc import Mapping

WORDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "en": {
        "goal": (
            *("learn to swim", "save money for a bicycle", "sleep better", "cook for two people", "grow herbs indoors"),
            *("stop biting my nails", "learn Spanish words faster", "paint a bedroom", "write a good CV"),
            *("find a part-time job", "teach my dog to sit", "take better photos", "read more books", "repair a chair"),
            *("start a small podcast", "clean an oven", "plan a picnic", "keep a journal", "choose a mattress"),
            *("organise my desk", "understand my electricity bill", "drink less coffee", "knit a scarf"),
            *("remember names", "pack a small suitcase", "get over a cold", "train for a long walk", "bake biscuits"),
            *("meet people in a new city", "speak in front of a class", "sharpen kitchen knives", "use less plastic"),
            *("learn the piano at home", "make friends with my colleagues", "buy a used car", "remove a coffee stain"),
            *("help my son with fractions", "stay awake in meetings", "set up a home office", "wake up earlier"),
            *("write a short thank-you note", "care for a goldfish", "prepare for an exam", "ask for a pay rise"),
        ),
        "limit": (
            *("I only have ten minutes a day.", "I have never done it before.", "Please keep it short."),
            *("Give me the steps in order.", "I do not want to spend much money.", "I live in a small flat."),
            *("Answer in three sentences.", "I am a complete beginner.", "Please give an example."),
            "What mistakes should I avoid?",
        ),
        "obstacle": (
            *("I have little time", "I get bored quickly", "it is too expensive", "my back hurts"),
            *("my flatmate does not agree", "we have two small children", "it rains all week", "I am quite shy"),
            *("I forgot to book anything", "our budget is small", "I work at night", "nobody can help me"),
            *("the shops are closed", "I have no car", "I already tried twice", "one of us is a vegetarian"),
        ),
        "relative": ("grandmother", "brother", "cousin", "best friend", "aunt", "nephew", "father", "wife", "husband"),
        "subject": (
            *("photosynthesis", "gravity", "the stock market", "recycling", "a rainbow", "the water cycle"),
            *("artificial intelligence", "democracy", "the immune system", "electric cars", "black holes", "insurance"),
            *("vaccines", "the ozone layer", "compound interest", "the Roman Empire", "jazz music", "earthquakes"),
            *("the moon and the tides", "how bees make honey", "the internet", "dreams", "migration of birds"),
            *(
                "bacteria",
                "the French Revolution",
                "a mortgage",
                "the human heart",
                "glaciers",
                "magnets",
                "probability",
            ),
        ),
        "listener": (
            *("a child of seven", "my grandfather", "a class of teenagers", "someone in a hurry", "a beginner"),
            *("a new colleague", "a curious friend"),
        ),
        "message": ("a short email", "a friendly message", "a formal letter", "a reminder", "a note", "an invitation"),
        "recipient": (
            *("landlord", "manager", "teacher", "customer", "old friend", "bank", "colleague", "dentist", "team"),
            *("professor", "sister", "choir", "insurance company"),
        ),
        "matter": (
            *("the meeting moves to Monday", "the heating is broken", "I will be on holiday next week"),
            *("the invoice is wrong", "thank you for the flowers", "I have found your umbrella", "my parcel is late"),
            *("I would like to change my appointment", "we need volunteers for the summer fair", "the party on Friday"),
            *("a reference for my new job", "the lost keys", "my train was cancelled", "the new opening hours"),
        ),
        "choice": (
            *("working from home", "a gas or an electric stove", "living in the countryside", "a tablet or a notebook"),
            *("renting or buying a flat", "a cat or a dog", "public transport", "learning online", "a used phone"),
            *("studying abroad", "a four-day week", "glasses or contact lenses", "trains or planes for short trips"),
        ),
        "value": ("price", "quality", "my health", "the environment", "comfort", "safety", "time"),
        "event": (
            *("a family reunion", "a garden party", "a camping trip", "a school trip to a museum", "a move"),
            *("a birthday for a ten-year-old", "a weekend by the lake", "a charity concert", "a hike in the hills"),
            *("a long flight", "a dinner for six", "a week in Rome", "a job fair", "a film night"),
        ),
        "food": (
            *("rice", "chicken", "lentils", "spinach", "potatoes", "mushrooms", "apples", "oats", "salmon", "eggs"),
            *("carrots", "chickpeas", "pasta", "yoghurt", "cheese", "peppers", "bananas"),
        ),
        "hero": (
            *(
                "a shy dragon",
                "an old clockmaker",
                "a lost penguin",
                "two sisters",
                "a tired astronaut",
                "a young baker",
            ),
            *("a talking teapot", "a retired pirate", "a curious fox", "a blind painter", "a girl with a red kite"),
            *(
                "a night watchman",
                "the last librarian",
                "a snowman",
                "a taxi driver",
                "a forgetful wizard",
                "a sparrow",
            ),
            *("a boy who cannot lie", "a grumpy postman", "a ghost", "a mountain guide", "a mermaid", "a robot dog"),
            *("a train conductor", "a princess who loves mud", "an ambitious snail", "a village doctor", "a giant"),
        ),
        "hero_start": (
            *("Anna", "The old sailor", "The little fox", "Captain Reed", "Grandmother Rose", "Tom", "The apprentice"),
            *("Nobody in the village", "The detective", "Lucy"),
        ),
        "deed": (
            *("finds a map", "waits for a letter", "loses a shoe", "learns to dance", "opens a tiny restaurant"),
            *("keeps a secret", "hears music at night", "builds a boat", "forgets a name", "is afraid of the dark"),
            *("makes an unlikely friend", "wants to see the sea", "wins a strange prize", "plants a tree"),
            *("cannot find the way home", "repairs an old radio", "sells umbrellas", "falls asleep for a year"),
        ),
        "place": (
            *("in a busy harbour", "on a quiet island", "in a snowy forest", "under a bridge", "in an empty theatre"),
            *("at the edge of the desert", "in a small town", "on a night train", "in the attic", "behind the moon"),
            *("at the bottom of a lake", "in a market in Morocco", "on the top floor", "in a garden of glass"),
            *("in the year 2300", "in a castle full of clocks", "by the river", "in an old hotel"),
        ),
        "thing": (
            *(
                "a silver key",
                "a broken violin",
                "the first snow",
                "a paper boat",
                "an unsent postcard",
                "a golden egg",
            ),
            *(
                "the lost map",
                "an old photograph",
                "a wooden horse",
                "a jar of stars",
                "a green coat",
                "a small lantern",
            ),
            *("a strange shadow", "the last apple", "a mirror", "a book without words"),
        ),
        "tone": (
            *("It should be funny.", "It should be sad and slow.", "Use simple words.", "Make it mysterious."),
            *("End with a surprise.", "Write in the first person.", "No more than 150 words.", "Keep it warm."),
        ),
    },
    "de": {
        "goal": (
            *("besser schlafen", "Geld sparen", "Gitarre spielen lernen", "schneller lesen", "gesünder essen"),
            *("im Alltag mehr Sport treiben", "neue Freunde finden", "einen kleinen Garten anlegen", "Brot backen"),
            *("mich auf eine Prüfung vorbereiten", "weniger Zeit am Handy verbringen", "ein Zimmer streichen"),
        ),
        "obstacle": (
            *("ich habe wenig Zeit", "es ist mir zu teuer", "ich bin oft müde", "meine Wohnung ist klein"),
            *("ich habe keine Erfahrung", "meine Familie ist dagegen", "ich verliere schnell die Lust"),
        ),
        "subject": (
            *("die Photosynthese", "die Schwerkraft", "die Demokratie", "das Internet", "der Wasserkreislauf"),
            *("künstliche Intelligenz", "die Börse", "ein Regenbogen", "das Immunsystem", "die Mülltrennung"),
        ),
        "recipient": ("meine Chefin", "meinen Vermieter", "den Lehrer", "eine alte Freundin", "den Kundendienst"),
        "matter": (
            *("ich komme morgen später", "die Heizung ist kaputt", "ich möchte den Termin verschieben"),
            *("danke für das Geschenk", "das Paket ist nicht angekommen"),
        ),
        "food": ("Reis", "Kartoffeln", "Linsen", "Äpfeln", "Käse", "Nudeln", "Spinat", "Pilzen", "Möhren"),
        "hero": (
            *("einen Drachen", "eine alte Uhr", "zwei Schwestern", "einen Fuchs", "einen Bäcker", "einen Roboter"),
            *("eine Hexe", "einen Seemann", "ein Mädchen mit einem Drachen", "einen müden Riesen"),
        ),
        "place": (
            *("in einem kleinen Dorf", "am Meer", "im verschneiten Wald", "auf einer Insel", "in einem alten Schloss"),
            *("im Zug nach Wien", "auf dem Dachboden", "unter der Brücke"),
        ),
        "thing": (
            *("dem silbernen Schlüssel", "dem ersten Schnee", "dem alten Brief", "dem Mond", "einer Laterne"),
            *("dem Herbst", "der kaputten Geige"),
        ),
    },
    "fr": {
        "goal": (
            *("mieux dormir", "économiser de l'argent", "apprendre la guitare", "manger plus sainement", "lire plus"),
            *("faire plus de sport", "trouver de nouveaux amis", "faire un petit jardin", "préparer un examen"),
            *("passer moins de temps au téléphone", "repeindre une chambre", "écrire un bon CV"),
        ),
        "obstacle": (
            *("j'ai peu de temps", "c'est trop cher", "je suis souvent fatigué", "mon appartement est petit"),
            *("je n'ai aucune expérience", "ma famille n'est pas d'accord"),
        ),
        "subject": (
            *("la photosynthèse", "la gravité", "la démocratie", "internet", "le cycle de l'eau", "la Bourse"),
            *("l'intelligence artificielle", "un arc-en-ciel", "le système immunitaire", "le recyclage"),
        ),
        "recipient": ("ma chef", "mon propriétaire", "mon professeur", "une vieille amie", "un client"),
        "matter": (
            *("j'arriverai plus tard demain", "le chauffage est en panne", "je voudrais changer de rendez-vous"),
            *("merci pour le cadeau", "le colis n'est pas arrivé"),
        ),
        "food": ("riz", "pommes de terre", "lentilles", "pommes", "fromage", "pâtes", "épinards", "carottes"),
        "hero": (
            *("un dragon timide", "une vieille horloge", "deux sœurs", "un renard", "un facteur", "un robot"),
            *("une sorcière", "un marin", "un géant fatigué", "une petite fille"),
        ),
        "place": (
            *("dans un petit village", "au bord de la mer", "dans une forêt enneigée", "sur une île", "au grenier"),
            *("dans un vieux château", "dans un train de nuit", "sous un pont"),
        ),
        "thing": (
            *("la clé d'argent", "la première neige", "une vieille lettre", "la lune", "une lanterne", "l'automne"),
            "le violon cassé",
        ),
    },
    "es": {
        "goal": (
            *("dormir mejor", "ahorrar dinero", "aprender a tocar el piano", "comer más sano", "leer más"),
            *("hacer más deporte", "hacer nuevos amigos", "plantar un huerto", "preparar un examen"),
            *("usar menos el móvil", "pintar una habitación", "escribir un buen currículum"),
        ),
        "obstacle": (
            *("tengo poco tiempo", "es demasiado caro", "siempre estoy cansado", "mi piso es pequeño"),
            *("no tengo experiencia", "mi familia no está de acuerdo"),
        ),
        "subject": (
            *("la fotosíntesis", "la gravedad", "la democracia", "internet", "el ciclo del agua", "la bolsa"),
            *("la inteligencia artificial", "el arcoíris", "el sistema inmunitario", "el reciclaje"),
        ),
        "recipient": ("mi jefa", "mi casero", "mi profesor", "una vieja amiga", "un cliente"),
        "matter": (
            *("mañana llegaré tarde", "la calefacción no funciona", "quiero cambiar la cita"),
            *("gracias por el regalo", "el paquete no ha llegado"),
        ),
        "food": ("arroz", "patatas", "lentejas", "manzanas", "queso", "pasta", "espinacas", "zanahorias"),
        "hero": (
            *("un dragón tímido", "un reloj viejo", "dos hermanas", "un zorro", "un cartero", "un robot"),
            *("una bruja", "un pirata", "un gigante cansado", "una niña"),
        ),
        "place": (
            *("en un pueblo pequeño", "junto al mar", "en un bosque nevado", "en una isla", "en el desván"),
            *("en un castillo antiguo", "en un tren nocturno", "bajo un puente"),
        ),
        "thing": (
            *("la llave de plata", "la primera nevada", "una carta antigua", "la luna", "un farol", "el otoño"),
            "el violín roto",
        ),
    },
    "it": {
        "goal": (
            *("dormire meglio", "risparmiare", "imparare a suonare la chitarra", "mangiare più sano", "leggere di più"),
            *("fare più sport", "trovare nuovi amici", "coltivare un orto", "preparare un esame"),
            *("usare meno il telefono", "dipingere una stanza", "scrivere un buon curriculum"),
        ),
        "obstacle": (
            *("ho poco tempo", "costa troppo", "sono sempre stanco", "la mia casa è piccola", "non ho esperienza"),
            "la mia famiglia non è d'accordo",
        ),
        "subject": (
            *("la fotosintesi", "la gravità", "la democrazia", "internet", "il ciclo dell'acqua", "la borsa"),
            *("l'intelligenza artificiale", "l'arcobaleno", "il sistema immunitario", "il riciclaggio"),
        ),
        "recipient": ("la mia capa", "il padrone di casa", "il professore", "una vecchia amica", "un cliente"),
        "matter": (
            *("domani arrivo tardi", "il riscaldamento è rotto", "vorrei spostare l'appuntamento"),
            *("grazie per il regalo", "il pacco non è arrivato"),
        ),
        "food": ("riso", "patate", "lenticchie", "mele", "formaggio", "pasta", "spinaci", "carote"),
        "hero": (
            *("un drago timido", "un vecchio orologio", "due sorelle", "una volpe", "un postino", "un robot"),
            *("una strega", "un pirata", "un gigante stanco", "una bambina"),
        ),
        "place": (
            *("in un piccolo paese", "in riva al mare", "in un bosco innevato", "su un'isola", "in soffitta"),
            *("in un vecchio castello", "su un treno di notte", "sotto un ponte"),
        ),
        "thing": (
            *("la chiave d'argento", "la prima neve", "una vecchia lettera", "la luna", "una lanterna", "l'autunno"),
            "il violino rotto",
        ),
    },
    "pt": {
        "goal": (
            *("dormir melhor", "economizar dinheiro", "aprender a tocar piano", "comer melhor", "ler mais livros"),
            *("fazer mais exercício", "fazer novos amigos", "plantar uma horta", "estudar para uma prova"),
            *("usar menos o celular", "pintar um quarto", "escrever um bom currículo"),
        ),
        "obstacle": (
            *("tenho pouco tempo", "é muito caro", "estou sempre cansado", "minha casa é pequena"),
            *("não tenho experiência", "minha família não concorda"),
        ),
        "subject": (
            *("a fotossíntese", "a gravidade", "a democracia", "a internet", "o ciclo da água", "a bolsa de valores"),
            *("a inteligência artificial", "o arco-íris", "o sistema imunológico", "a reciclagem"),
        ),
        "recipient": ("minha chefe", "o proprietário", "meu professor", "uma velha amiga", "um cliente"),
        "matter": (
            *("amanhã vou chegar tarde", "o chuveiro quebrou", "quero mudar a consulta"),
            *("obrigado pelo presente", "a encomenda não chegou"),
        ),
        "food": ("arroz", "batata", "lentilha", "maçã", "queijo", "macarrão", "espinafre", "cenoura"),
        "hero": (
            *("um dragão tímido", "um relógio velho", "duas irmãs", "uma raposa", "um carteiro", "um robô"),
            *("uma bruxa", "um pirata", "um gigante cansado", "uma menina"),
        ),
        "place": (
            *("numa vila pequena", "à beira do mar", "numa floresta escura", "numa ilha", "no sótão"),
            *("num castelo antigo", "num trem noturno", "debaixo de uma ponte"),
        ),
        "thing": (
            *("a chave de prata", "o primeiro frio", "uma carta antiga", "a lua", "uma lanterna", "o outono"),
            "o violino quebrado",
        ),
    },
    "nl": {
        "goal": (
            *("beter te slapen", "geld te sparen", "gitaar te leren spelen", "gezonder te eten", "meer te lezen"),
            *("vaker te sporten", "nieuwe vrienden te maken", "een moestuin te beginnen", "een kamer te verven"),
            *("minder op mijn telefoon te kijken", "een goede sollicitatiebrief te schrijven"),
        ),
        "obstacle": (
            *("ik heb weinig tijd", "het is te duur", "ik ben altijd moe", "mijn huis is klein"),
            *("ik heb geen ervaring", "mijn familie is het er niet mee eens"),
        ),
        "subject": (
            *("fotosynthese", "zwaartekracht", "democratie", "het internet", "de waterkringloop", "de beurs"),
            *("kunstmatige intelligentie", "een regenboog", "het immuunsysteem", "recycling"),
        ),
        "recipient": ("mijn baas", "mijn huisbaas", "de juf", "een oude vriendin", "een klant"),
        "matter": (
            *("ik kom morgen later", "de verwarming is kapot", "ik wil de afspraak verzetten"),
            *("bedankt voor het cadeau", "het pakket is niet aangekomen"),
        ),
        "food": ("rijst", "aardappelen", "linzen", "appels", "kaas", "pasta", "spinazie", "wortels"),
        "hero": (
            *("een verlegen draak", "een oude klok", "twee zussen", "een vos", "een postbode", "een robot"),
            *("een heks", "een piraat", "een moe reus", "een meisje"),
        ),
        "place": (
            *("in een klein dorp", "aan zee", "in een besneeuwd bos", "op een eiland", "op zolder"),
            *("in een oud kasteel", "in een nachttrein", "onder een brug"),
        ),
        "thing": (
            *("de zilveren sleutel", "de eerste sneeuw", "een oude brief", "de maan", "een lantaarn", "de herfst"),
            "de kapotte viool",
        ),
    },
}
