"""The words of the built-in phrasebook, as tables written by hand.

Every table is a block of text with one word per line; the comment above it says how to read
a line. Irregular forms are spelled out here, regular ones are left to the module inflection.
"""

# Nouns, grouped by meaning. A line reads:
#   gender  nominative  [genitive, masculine and neuter only]  plural  =  English [plural]
# A plural of "-" marks a mass noun. A masculine genitive in -n marks a weak noun.
NOUN_TABLE = {
    "person": """
        m Mann Mannes Männer = man men
        f Frau Frauen = woman women
        n Kind Kindes Kinder = child children
        m Junge Jungen Jungen = boy
        n Mädchen Mädchens Mädchen = girl
        m Freund Freundes Freunde = friend
        m Lehrer Lehrers Lehrer = teacher
        m Arzt Arztes Ärzte = doctor
        m Nachbar Nachbarn Nachbarn = neighbor
        m Student Studenten Studenten = student
        m Kollege Kollegen Kollegen = colleague
        m Bäcker Bäckers Bäcker = baker
        m Gärtner Gärtners Gärtner = gardener
        m Polizist Polizisten Polizisten = policeman policemen
        m Bauer Bauern Bauern = farmer
        m Gast Gastes Gäste = guest
        m König Königs Könige = king
        f Königin Königinnen = queen""",
    "kin": """
        m Vater Vaters Väter = father
        f Mutter Mütter = mother
        m Bruder Bruders Brüder = brother
        f Schwester Schwestern = sister
        m Sohn Sohnes Söhne = son
        f Tochter Töchter = daughter
        m Onkel Onkels Onkel = uncle
        f Tante Tanten = aunt
        m Großvater Großvaters Großväter = grandfather
        f Großmutter Großmütter = grandmother
        f Nichte Nichten = niece""",
    "animal": """
        m Hund Hundes Hunde = dog
        f Katze Katzen = cat
        n Pferd Pferdes Pferde = horse
        f Kuh Kühe = cow
        m Vogel Vogels Vögel = bird
        f Maus Mäuse = mouse mice
        n Schwein Schweins Schweine = pig
        n Kaninchen Kaninchens Kaninchen = rabbit
        f Ziege Ziegen = goat""",
    "food": """
        m Apfel Apfels Äpfel = apple
        f Birne Birnen = pear
        f Banane Bananen = banana
        n Ei Eis Eier = egg
        m Kuchen Kuchens Kuchen = cake
        f Kartoffel Kartoffeln = potato potatoes
        f Tomate Tomaten = tomato tomatoes
        f Suppe Suppen = soup
        n Brötchen Brötchens Brötchen = roll
        f Wurst Würste = sausage""",
    "staple": """
        n Brot Brotes - = bread
        m Käse Käses - = cheese
        m Reis Reises - = rice
        n Fleisch Fleisches - = meat
        f Butter - = butter
        m Honig Honigs - = honey""",
    "drink": """
        n Wasser Wassers - = water
        f Milch - = milk
        m Kaffee Kaffees - = coffee
        m Tee Tees - = tea
        m Saft Saftes - = juice
        m Wein Weines - = wine""",
    "text": """
        n Buch Buches Bücher = book
        f Zeitung Zeitungen = newspaper
        m Brief Briefes Briefe = letter
        m Roman Romans Romane = novel
        f Geschichte Geschichten = story stories
        n Gedicht Gedichts Gedichte = poem
        f Postkarte Postkarten = postcard""",
    "idea": """
        n Lied Liedes Lieder = song
        f Frage Fragen = question
        f Sprache Sprachen = language
        m Film Films Filme = movie
        n Bild Bildes Bilder = picture""",
    "thing": """
        m Schlüssel Schlüssels Schlüssel = key
        n Messer Messers Messer = knife knives
        n Glas Glases Gläser = glass
        f Tasse Tassen = cup
        m Teller Tellers Teller = plate
        m Löffel Löffels Löffel = spoon
        f Tasche Taschen = bag
        m Koffer Koffers Koffer = suitcase
        m Ball Balles Bälle = ball
        f Flasche Flaschen = bottle
        m Korb Korbes Körbe = basket
        n Geschenk Geschenks Geschenke = gift
        m Regenschirm Regenschirms Regenschirme = umbrella
        f Kamera Kameras = camera""",
    "device": """
        f Uhr Uhren = clock
        f Lampe Lampen = lamp
        n Radio Radios Radios = radio
        m Computer Computers Computer = computer
        n Telefon Telefons Telefone = phone""",
    "instrument": """
        f Gitarre Gitarren = guitar
        n Klavier Klaviers Klaviere = piano""",
    "clothes": """
        m Mantel Mantels Mäntel = coat
        n Hemd Hemdes Hemden = shirt
        n Kleid Kleides Kleider = dress
        m Rock Rockes Röcke = skirt
        m Hut Hutes Hüte = hat
        f Jacke Jacken = jacket
        m Schuh Schuhs Schuhe = shoe""",
    "vehicle": """
        n Auto Autos Autos = car
        m Bus Busses Busse = bus
        m Zug Zuges Züge = train
        n Fahrrad Fahrrads Fahrräder = bicycle
        n Schiff Schiffes Schiffe = ship""",
    "building": """
        n Haus Hauses Häuser = house
        f Schule Schulen = school
        f Kirche Kirchen = church
        m Bahnhof Bahnhofs Bahnhöfe = station
        n Krankenhaus Krankenhauses Krankenhäuser = hospital
        n Hotel Hotels Hotels = hotel
        n Museum Museums Museen = museum
        n Büro Büros Büros = office
        m Laden Ladens Läden = store
        f Bibliothek Bibliotheken = library libraries
        n Restaurant Restaurants Restaurants = restaurant
        n Theater Theaters Theater = theater""",
    "room": """
        f Küche Küchen = kitchen
        n Zimmer Zimmers Zimmer = room
        f Wohnung Wohnungen = apartment""",
    "outdoor": """
        m Garten Gartens Gärten = garden
        m Wald Waldes Wälder = forest
        m Park Parks Parks = park
        f Stadt Städte = city cities
        n Dorf Dorfes Dörfer = village""",
    "water": """
        m See Sees Seen = lake
        m Fluss Flusses Flüsse = river""",
    "open": """
        f Straße Straßen = street
        f Insel Inseln = island
        m Berg Berges Berge = mountain
        f Brücke Brücken = bridge""",
    "furniture": """
        m Tisch Tisches Tische = table
        m Stuhl Stuhls Stühle = chair
        n Bett Bettes Betten = bed
        m Schrank Schranks Schränke = cupboard
        n Regal Regals Regale = shelf shelves
        n Sofa Sofas Sofas = sofa
        f Bank Bänke = bench""",
    "opening": """
        f Tür Türen = door
        n Fenster Fensters Fenster = window
        f Kiste Kisten = box""",
    "plant": """
        f Blume Blumen = flower
        m Baum Baumes Bäume = tree
        f Rose Rosen = rose""",
}

# Adjectives: German[/stem before endings] [comparative] = English [comparative, or "more"]
# : what it may describe (noun groups and single nouns).
ADJECTIVE_TABLE = """
    alt älter = old older
        : person kin animal building vehicle clothes device furniture instrument Buch
    jung jünger = young younger : person Bruder Schwester Sohn Tochter Tante Nichte animal
    neu = new
        : text thing device instrument clothes vehicle furniture Film Lied Lehrer Nachbar Kollege
    groß größer = big bigger
        : animal vehicle building room outdoor furniture plant opening Ei Wurst Berg
    klein kleiner = small smaller
        : animal thing building room outdoor furniture Kind Bruder Wurst Berg Insel
    gut = good : text idea food staple drink Lehrer Arzt Freund Kollege Bäcker
    schön schöner = beautiful more : plant clothes idea outdoor water open Haus Königin Frau
    teuer/teur teurer = expensive more : clothes vehicle device instrument thing Hotel Wein
    billig billiger = cheap cheaper : clothes vehicle device furniture thing Hotel Wein
    rot = red : clothes vehicle plant opening Apfel Tomate Ball Tasche Lampe Tasse
    blau = blue : clothes vehicle opening Blume Vogel Tasche Flasche Teller Stuhl
    grün = green : clothes vehicle opening Apfel Birne Flasche Sofa Insel
    weiß = white : clothes animal plant Haus Tasse Teller Schiff Tür Berg
    schwarz = black : clothes animal vehicle Tasche Koffer Regenschirm Kamera Kaffee Klavier
    gelb = yellow : Butter clothes vehicle plant Banane Birne Haus Tasse Lampe
    schnell schneller = fast faster : vehicle animal Junge Mädchen Student Polizist Kind
    langsam langsamer = slow slower : vehicle animal Computer Junge Gast Bäcker Student Gärtner Kind
    stark stärker = strong stronger : person kin Pferd Hund Kaffee Tee
    müde/müd = tired : person kin animal
    krank = sick : person kin animal
    hungrig hungriger = hungry hungrier : person kin animal
    freundlich freundlicher = friendly friendlier : person kin
    fleißig fleißiger = hardworking more : person kin
    faul fauler = lazy lazier : person kin animal
    klug klüger = smart smarter : person kin animal
    traurig trauriger = sad sadder : person kin Brief Roman Geschichte Gedicht Lied Film Bild
    glücklich glücklicher = happy happier : person kin
    reich reicher = rich richer : person kin
    arm ärmer = poor poorer : person kin Dorf Stadt
    frisch = fresh : food staple Milch Wasser Saft
    warm = warm : clothes drink Suppe Brot Brötchen Kartoffel Zimmer Küche
    kalt = cold : drink Suppe Wurst Kartoffel Fleisch Zimmer Wohnung See Fluss
    süß = sweet : Apfel Birne Banane Kuchen Honig Tee Saft Wein Brötchen
    leer = empty : room Glas Tasse Teller Flasche Tasche Koffer Korb Kiste Bus Zug Straße Schrank
    schwer schwerer = heavy heavier : thing furniture Kiste Buch Mantel Klavier
    schmutzig = dirty : clothes thing vehicle room opening Hund Schwein
    interessant interessanter = interesting more : text idea Museum Stadt Insel
    langweilig langweiliger = boring more : text idea Museum Dorf
    lang länger = long longer
        : Brief Roman Geschichte Gedicht Lied Straße Fluss Brücke Rock Kleid Mantel Film Zug
    berühmt berühmter = famous more : König Arzt Königin building text Bild Lied Brücke
    modern moderner = modern more : building room device furniture vehicle
    dunkel/dunkl = dark : room building outdoor Straße Jacke Mantel Rock
    ruhig ruhiger = quiet quieter : person room outdoor Straße Hotel Insel
"""

# Verbs: infinitive (prefix|stem)  he-form  past  [ist]  participle = English base [past
# participle] [+particle] [~preposition] [*] [!] : uses, separated by ";".
# "ist" marks sein as the auxiliary, "+" a particle that a pronoun precedes, "~" a preposition
# that it follows, "*" a verb without progressive and imperative, "!" a verb of state.
# A use reads: kind[+adjunct...] nouns, groups or places [by subjects, else people]. Kinds:
#   t accusative object    d dative object    b dative person and accusative object
#   i nothing needed    s place needed    m direction needed    w weather
#   c accusative object put on a piece of furniture    o object with a preposition
#   n number of euros
VERB_TABLE = """
    lesen liest las gelesen = read read read : t+in text
    schreiben schreibt schrieb geschrieben = write wrote written
        : t+in Buch Brief Roman Geschichte Gedicht Postkarte Lied
    essen isst aß gegessen = eat ate eaten : t+in+with food staple
    trinken trinkt trank getrunken = drink drank drunk : t+in+with drink
    kaufen kauft kaufte gekauft = buy bought bought
        : t+for food staple drink text thing device clothes furniture plant instrument Auto Fahrrad
    verkaufen verkauft verkaufte verkauft = sell sold sold
        : t+in food staple text thing device clothes furniture plant instrument Auto Fahrrad
    sehen sieht sah gesehen = see saw seen *
        : t person kin animal vehicle building outdoor water open by person kin animal
    suchen sucht suchte gesucht = look ~for
        : t+in person kin animal thing clothes text by person kin animal
    finden findet fand gefunden = find found found * : t+in animal thing clothes text Hotel
    kennen kennt kannte gekannt = know knew known ! : t person kin text idea building open
    lieben liebt liebte geliebt = love ! : t person kin animal idea plant Stadt Dorf Garten
    brauchen braucht brauchte gebraucht = need !
        : t drink thing device clothes furniture food Auto Fahrrad Arzt
    nehmen nimmt nahm genommen = take took taken : t thing clothes food Bus Zug Auto Fahrrad
    tragen trägt trug getragen = wear wore worn : t clothes
    waschen wäscht wusch gewaschen = wash
        : t+in clothes Auto Hund Apfel Tomate Kartoffel Teller Glas Tasse Pferd
    besuchen besucht besuchte besucht = visit
        : t+with person kin Museum Schule Stadt Dorf Kirche Insel Theater
    hören hört hörte gehört = hear heard heard *
        : t person kin animal Lied Geschichte Zug Radio by person kin animal
    verstehen versteht verstand verstanden = understand understood understood !
        : t person kin idea text
    lernen lernt lernte gelernt = learn : t+in+with Sprache Lied Gedicht
    fragen fragt fragte gefragt = ask : t person kin
    malen malt malte gemalt = paint : t+in animal plant furniture person Bild Schiff Haus Kirche
    reparieren repariert reparierte repariert = repair : t+for vehicle device furniture opening
    bauen baut baute gebaut = build built built
        : t+for Haus Schule Kirche Brücke Schiff Hotel Schrank Tisch Bett Bank Krankenhaus
    verlieren verliert verlor verloren = lose lost lost * : t thing clothes Buch Brief
    vergessen vergisst vergaß vergessen = forget forgot forgotten * : t thing clothes Buch Frage
    putzen putzt putzte geputzt = clean
        : t+with room Fenster Tür Haus Tisch Schuh Fahrrad Büro Schrank Regal
    treffen trifft traf getroffen = meet met met : t+in person kin
    holen holt holte geholt = fetch : t+for food staple drink thing
    schneiden schneidet schnitt geschnitten = cut cut cut
        : t+for Apfel Birne Banane Kuchen Tomate Wurst Brot Käse Fleisch Kartoffel
    kochen kocht kochte gekocht = cook : t+for Suppe Ei Kartoffel Reis Fleisch Wurst
    backen backt backte gebacken = bake : t+for Kuchen Brot Brötchen
    öffnen öffnet öffnete geöffnet = open
        : t opening Brief Flasche Koffer Geschenk Tasche Laden Schrank
    schließen schließt schloss geschlossen = close
        : t opening Buch Koffer Tasche Laden Schrank Flasche Restaurant
    spielen spielt spielte gespielt = play
        : i+in+with ; t+in Gitarre Klavier ; o mit3 with animal person kin
    singen singt sang gesungen = sing sang sung : i+in+with ; t+in+with Lied
    füttern füttert fütterte gefüttert = feed fed fed : t+in animal
    bekommen bekommt bekam bekommen = receive * : t Brief Postkarte Geschenk Buch Zeitung Blume
    haben hat hatte gehabt = have had had !
        : t animal thing device clothes kin instrument Garten Haus Auto Fahrrad
    jagen jagt jagte gejagt = chase : t+in animal by animal
    ab|holen holt holte abgeholt = pick +up : t person kin
    an|rufen ruft rief angerufen = call : t person kin
    ein|laden lädt lud eingeladen = invite : t person kin
    mit|bringen bringt brachte mitgebracht = bring brought brought +along
        : t food staple drink thing text
    ein|schalten schaltet schaltete eingeschaltet = turn +on : t Lampe Radio Computer Telefon
    auf|räumen räumt räumte aufgeräumt = tidy +up : t+with room Büro Laden Schrank Regal
    weg|werfen wirft warf weggeworfen = throw threw thrown +away : t thing clothes text food
    helfen hilft half geholfen = help : d+in person kin
    danken dankt dankte gedankt = thank : d person kin
    folgen folgt folgte ist gefolgt = follow : d person kin animal Auto Bus by person kin animal
    antworten antwortet antwortete geantwortet = answer : d person kin
    gehören gehört gehörte gehört = belong ~to !
        : d person kin by thing device clothes vehicle furniture animal text
    zu|hören hört hörte zugehört = listen ~to : d person kin
    geben gibt gab gegeben = give gave given : b thing text clothes food plant
    zeigen zeigt zeigte gezeigt = show showed shown : b thing text clothes device building Bild
    schicken schickt schickte geschickt = send sent sent : b text Geschenk Blume Bild Rose Film
    bringen bringt brachte gebracht = bring brought brought : b thing food drink text staple
    leihen leiht lieh geliehen = lend lent lent : b thing text clothes Auto Fahrrad Gitarre
    schlafen schläft schlief geschlafen = sleep slept slept
        : i+in by person kin animal ; s seat by person kin animal
    arbeiten arbeitet arbeitete gearbeitet = work : i+in+with
    warten wartet wartete gewartet = wait
        : i+in by person kin animal ; o auf4 for person kin Bus Zug Brief
    tanzen tanzt tanzte getanzt = dance : i+in+with
    lachen lacht lachte gelacht = laugh : i+with ; o über4 about person Film Frage Bild Geschichte
    weinen weint weinte geweint = cry cried cried : i+in
    schwimmen schwimmt schwamm ist geschwommen = swim swam swum : i+with ; s swim
    sitzen sitzt saß gesessen = sit sat sat : s place seat spot by person kin animal
    liegen liegt lag gelegen = lie lay lain
        : s seat spot by person kin animal ; s on spot by thing text
    stehen steht stand gestanden = stand stood stood
        : s place spot by person kin animal ; s on spot by Glas Tasse Flasche Lampe Korb
    wohnen wohnt wohnte gewohnt = live : s home
    bleiben bleibt blieb ist geblieben = stay : s place home
    auf|stehen steht stand ist aufgestanden = get got gotten +up : i
    auf|wachen wacht wachte ist aufgewacht = wake woke woken +up : i by person kin animal
    ein|schlafen schläft schlief ist eingeschlafen = fall fell fallen +asleep
        : i+in by person kin animal ; s seat
    an|kommen kommt kam ist angekommen = arrive : i by person kin vehicle ; s arrival
    fern|sehen sieht sah ferngesehen = watch +TV : i+with
    ein|kaufen kauft kaufte eingekauft = go went gone +shopping : i+with
    gehen geht ging ist gegangen = go went gone : m to into through across
    fahren fährt fuhr ist gefahren = drive drove driven : m to town through across
    laufen läuft lief ist gelaufen = run ran run : m to into through across by person kin animal
    kommen kommt kam ist gekommen = come came come : m from
    fliegen fliegt flog ist geflogen = fly flew flown : m town
    sprechen spricht sprach gesprochen = speak spoke spoken : o mit3 with person kin
    denken denkt dachte gedacht = think thought thought
        : o an4 of person kin Garten Frage Dorf Insel
    legen legt legte gelegt = put put put : c text Schlüssel Messer Löffel Kamera Geschenk Hut
    stellen stellt stellte gestellt = place : c Glas Tasse Teller Flasche Lampe Korb Radio
    kosten kostet kostete gekostet = cost cost cost !
        : n by thing clothes device vehicle furniture instrument text
    regnen regnet regnete geregnet = rain : w
    schneien schneit schneite geschneit = snow : w
"""

# Verbs that take a clause: the same columns, then the German and English conjunctions.
REPORT_TABLE = """
    wissen weiß wusste gewusst = know knew known ! : dass that
    glauben glaubt glaubte geglaubt = believe ! : dass that
    sagen sagt sagte gesagt = say said said : dass that
    hoffen hofft hoffte gehofft = hope : dass that
    fragen fragt fragte gefragt = ask : ob whether
"""

# Places and directions: name: German preposition and case, English preposition : nouns.
# The group "town" stands for the names of cities.
PLACE_TABLE = """
    place: in3 in : building room outdoor town
    place: an3 at : water
    place: auf3 on : open
    place: vor3 in_front_of : building
    place: hinter3 behind : building
    seat: auf3 on : Stuhl Bett Sofa Bank
    spot: unter3 under : Tisch Baum Bett
    spot: neben3 next_to : furniture opening Baum
    on: auf3 on : Tisch Stuhl Bett Sofa Bank Schrank
    home: in3 in : Haus Hotel Wohnung Stadt Dorf Zimmer town
    swim: in3 in : water
    arrival: in3 in : Stadt Dorf Hotel Büro town
    arrival: an3 at : Bahnhof
    to: zu3 to : building water Arzt Bäcker Freund Nachbar
    into: in4 into : building room outdoor
    through: durch4 through : outdoor
    across: über4 across : Straße Brücke
    from: aus3 from : building room outdoor town
    town: nach3 to : town
    to_put: auf4 on : Tisch Stuhl Bett Schrank Sofa Bank
    to_put: neben4 next_to : Lampe Fenster Bett
    to_put: unter4 under : Tisch Stuhl Bett
"""

# Names of people, alike in both languages (none ends in an s sound, for the genitive).
NAMES = ("Anna", "Peter", "Maria", "Paul", "Eva", "David", "Julia", "Martin", "Emma", "Simon")
# Names of cities: English, German.
TOWNS = (
    ("Berlin", "Berlin"),
    ("Hamburg", "Hamburg"),
    ("Vienna", "Wien"),
    ("Munich", "München"),
    ("Cologne", "Köln"),
    ("Rome", "Rom"),
)

# Nouns that sound odd with an owner ("my river").
UNOWNED = (
    *("Mann", "Frau", "Junge", "Mädchen", "Polizist", "Bauer", "König", "Königin"),
    *("Bahnhof", "Krankenhaus", "Museum", "Bibliothek", "Theater", "Wald", "Park", "Bus", "Zug"),
    *("See", "Fluss", "Straße", "Insel", "Berg", "Brücke"),
)

# Numbers to twelve and the tens: English, German.
UNITS = (
    ("one", "ein"),
    ("two", "zwei"),
    ("three", "drei"),
    ("four", "vier"),
    ("five", "fünf"),
    ("six", "sechs"),
    ("seven", "sieben"),
    ("eight", "acht"),
    ("nine", "neun"),
    ("ten", "zehn"),
    ("eleven", "elf"),
    ("twelve", "zwölf"),
)
TENS = (
    ("twenty", "zwanzig"),
    ("thirty", "dreißig"),
    ("forty", "vierzig"),
    ("fifty", "fünfzig"),
    ("sixty", "sechzig"),
    ("seventy", "siebzig"),
    ("eighty", "achtzig"),
    ("ninety", "neunzig"),
)
# The numbers that sentences use; the compounds show every ten and every unit.
NUMBERS = (*range(2, 13), 20, 21, 30, 32, 43, 50, 54, 65, 76, 87, 98)

# Adverbs of time, "English=German": for habits, for the past, for the future.
HABIT = (
    "today=heute, in the morning=am Morgen, in the evening=am Abend, on Sunday=am Sonntag,"
    "in summer=im Sommer, in winter=im Winter, after work=nach der Arbeit, every day=jeden Tag"
)
BEFORE = (
    "yesterday=gestern, last week=letzte Woche, last year=letztes Jahr, on Monday=am Montag,"
    "two days ago=vor zwei Tagen, in the evening=am Abend"
)
AHEAD = (
    "tomorrow=morgen, next week=nächste Woche, next year=nächstes Jahr, on Friday=am Freitag,"
    "after work=nach der Arbeit, today=heute, soon=bald"
)
# Adverbs that stand before the English main verb: for the present, the past, the perfect.
OFTEN = "often=oft, always=immer, sometimes=manchmal, never=nie, usually=meistens"
OFTEN_BEFORE = "often=oft, always=immer, never=nie"
ALREADY = "already=schon, often=oft, never=nie"
# Adverbs that make no sense with "not".
AFFIRMATIVE = "every day=jeden Tag, soon=bald"
