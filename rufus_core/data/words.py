"""One shared list of words that problems are made of, so that the miniature's vocabulary stays small."""

NAMES = (
    "Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "June", "Kai", "Lena",
    "Max", "Nora", "Otto", "Pia", "Quin", "Rosa", "Sam", "Tara", "Uma", "Vic", "Wes", "Zoe",
)  # fmt: skip

NOUNS = (
    "apple", "bread", "chair", "drum", "egg", "flag", "glass", "hat", "ink", "jar", "kite", "lamp",
    "map", "nut", "oven", "pen", "quilt", "rope", "shoe", "table", "urn", "vase", "wheel", "yarn",
)  # fmt: skip

PLACES = (
    "Arden",
    "Belmont",
    "Corin",
    "Dover",
    "Elmira",
    "Fargo",
    "Galway",
    "Hobart",
    "Ipswich",
    "Jena",
    "Kyoto",
    "Lyon",
)

TOPICS = ("animals", "food", "music", "sea", "sport", "weather")
