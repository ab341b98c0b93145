"""NLTK's sentence and word splitting without the network, by its trained model where the machine has it.

The packages behind IFEval and IFBench download NLTK's data while they are imported. Here nothing is ever downloaded:
`prepare` takes that away and says what the sentences are split by. Call it in a worker process only, for it changes
the `nltk` module.
"""

from __future__ import annotations

from typing import Any

TRAINED = "NLTK's trained Punkt"
UNTRAINED = "untrained Punkt with a short list of abbreviations"

# Without its trained model Punkt knows no abbreviation, and takes a capital after a single letter for a surname.
_ABBREVIATIONS = (
    "mr mrs ms dr prof st jr sr rev gen col capt lt sgt hon gov sen rep "
    "vs etc e.g i.e cf al approx dept est fig inc ltd co corp no vol ed "
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun a.m p.m u.s u.k"
)
_LOWER_CASE_WORDS = (
    "the a an this that these those it he she we they you his her its our their your my there here what who when where "
    "why how which if as and but or so yet for in on at by to of from with after before while since although because "
    "however then thus also now let let's please do don't is are was were can could will would should may must have "
    "has not no yes all some many most each every both another one two"
)


def has(resource: str) -> bool:
    """Whether NLTK finds the resource, such as `tokenizers/punkt_tab`, on this machine."""
    import nltk

    try:
        nltk.data.find(resource)
    except LookupError:
        return False
    return True


def prepare() -> str:
    """Make `nltk` work offline. Returns what it splits sentences by, TRAINED or UNTRAINED."""
    import nltk

    nltk.download = lambda *_args, **_options: False
    if has("tokenizers/punkt_tab/english"):
        return TRAINED
    sentences, words = sentence_tokenizer(), nltk.tokenize.NLTKWordTokenizer()

    def word_tokenize(text: str) -> list[str]:
        return [word for sentence in sentences.tokenize(text) for word in words.tokenize(sentence)]

    nltk.word_tokenize = word_tokenize
    return UNTRAINED


def sentence_tokenizer() -> Any:
    """Punkt for English, as `prepare` found it."""
    from nltk.tokenize import punkt

    if has("tokenizers/punkt_tab/english"):
        return punkt.PunktTokenizer("english")
    parameters = punkt.PunktParameters()
    parameters.abbrev_types = set(_ABBREVIATIONS.split())
    for word in _LOWER_CASE_WORDS.split():
        parameters.add_ortho_context(word, punkt._ORTHO_MID_LC)
    return punkt.PunktSentenceTokenizer(parameters)
