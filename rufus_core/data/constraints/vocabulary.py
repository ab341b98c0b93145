"""The words that examples are written with. Keywords are apart: no draft says one by chance."""

NOUNS = (
    "lamp", "map", "table", "garden", "window", "road", "bridge", "boat", "hill", "clock", "book", "door", "wall",
    "apple", "island", "engine", "uncle", "judge", "king", "queen", "yard", "zoo", "village", "nurse", "fox", "egg",
    "paper", "tree", "moon", "star", "cloud",
)  # fmt: skip
ADJECTIVES = (
    "old", "small", "quiet", "warm", "new", "bright", "deep", "round", "gentle", "happy", "kind", "narrow", "urban",
    "early", "jolly", "young", "vivid", "icy", "zesty", "fancy", "light", "red",
)  # fmt: skip
VERBS = (
    "holds", "finds", "keeps", "meets", "shows", "follows", "opens", "joins", "likes", "values", "guards", "watches",
    "reaches", "needs", "calls", "turns",
)  # fmt: skip
LINKS = ("and", "with", "or", "by", "for", "in", "of", "to", "a", "at", "upon", "into", "up", "as", "but", "now", "x")
WORDS = tuple(dict.fromkeys((*NOUNS, *ADJECTIVES, *VERBS, *LINKS)))

KEYWORDS = (
    "harbour", "velvet", "compass", "lantern", "meadow", "orchard", "pepper", "signal", "thunder", "voyage", "willow",
    "anchor", "basket", "candle", "dragon", "ember", "feather", "glacier", "hammer", "ivory", "jungle", "kettle",
)  # fmt: skip
PHRASES = (
    "against all odds", "once in a while", "piece by piece", "on the other hand", "time will tell", "step by step",
    "better late than never", "little by little",
)  # fmt: skip
SENTENCES = (
    "Every river starts as a trickle.", "Good tools make light work.", "Nothing grows without patience.",
    "The best plans leave some room.", "Small habits add up over time.", "Curiosity keeps the mind awake.",
)  # fmt: skip
LONG_WORDS = ("extraordinarily", "comprehensively", "straightforward", "characteristic", "neighbourhoods")
PALINDROMES = ("level", "noon", "radar", "civic", "kayak", "madam", "refer", "rotor", "tenet", "solos")
COMPOUNDS = ("well-known", "long-term", "part-time", "high-speed", "old-school", "self-made", "two-way", "ice-cold")
NAMES = ("Ada", "Bruno", "Clara", "Dmitri", "Elena", "Farid", "Greta", "Hugo")
LABELS = ("Summary", "Details", "Advice", "Background", "Outlook", "Costs", "Risks", "Example")
ACROSTICS = ("BRIDGE", "GARDEN", "WINTER", "ROBOT", "PLANET", "MUSIC", "TIGER")
