"""A problem set in numbers, as Tables 5, 7 and 13 have them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median

from pydantic import Field

from rufus_core.data.code_layouts import platform_of
from rufus_core.data.domains import FAMILIES, Tag, tag_problem
from rufus_core.data.preference_sets import Candidate, candidate_of
from rufus_core.types import Frozen, Json, Problem

SHORT_LABEL_TOKENS = 32  # RRL-D6 prints no bound; its median is 5
CountTokens = Callable[[Sequence[str]], list[int]]  # of each text


class Group(Frozen):
    """The problems of one family, source and modality. Shares are of the whole set, in [0, 1]."""

    family: str
    source: str
    modality: str
    num_problems: int
    share: float
    num_tokens: int  # of prompts, tools left out
    token_share: float


class DomainGroup(Frozen):
    """The problems of one subject family and domain (RRL-D2, RRL-D3). Shares are of the whole set, in [0, 1]."""

    family: str
    domain: str
    num_problems: int
    share: float
    num_tokens: int  # of prompts
    token_share: float


class SetFacts(Frozen):
    """What is known of a set without playing it. A part that no problem has is None."""

    groups: tuple[Group, ...]
    num_problems: int
    num_tokens: int
    domains: tuple[DomainGroup, ...] = ()  # of Reasoning RL's problems (T5)
    answers: AnswerFacts | None = None
    tests: tuple[TestFacts, ...] = ()
    platforms: dict[str, int] = Field(default_factory=dict)  # coding problems that name one, the largest first (CRL-D9)
    rubrics: RubricFacts | None = None
    turns: TurnFacts | None = None
    num_pairs: int = 0  # problems with a chosen and a rejected response (T13)


class AnswerFacts(Frozen):
    """Problems that are answered by a short gold label (RRL-D6)."""

    num_short: int
    share: float
    median_tokens: float


class TestFacts(Frozen):
    """Tests for each problem of one modality (T7)."""

    __test__ = False  # nothing that pytest collects

    modality: str
    num_problems: int
    least: int
    median: float
    most: int


class RubricFacts(Frozen):
    """Constraints or rubrics for each prompt (IF-D1, IF-D2): how many prompts have how many, and of which kinds."""

    by_count: dict[int, int]
    by_kind: dict[str, int]
    mean: float


class TurnFacts(Frozen):
    """Conversations with more than one user turn (IF-D1)."""

    num_problems: int
    mean_turns: float  # of users
    num_with_system: int


SetFacts.model_rebuild()


def summarise(problems: Sequence[Problem], count_tokens: CountTokens) -> SetFacts:
    """Groups in the order of their first problem."""
    tokens = count_tokens(["\n".join(message.content for message in problem.prompt) for problem in problems])
    counts: Counter[tuple[str, str, str]] = Counter()
    sums: Counter[tuple[str, str, str]] = Counter()
    for problem, number in zip(problems, tokens, strict=True):
        key = (problem.family, problem.source, modality(problem))
        counts[key] += 1
        sums[key] += number
    total, total_tokens = len(problems), sum(tokens)
    groups = tuple(
        Group(
            family=family,
            source=source,
            modality=kind,
            num_problems=count,
            share=count / total,
            num_tokens=sums[family, source, kind],
            token_share=sums[family, source, kind] / max(total_tokens, 1),
        )
        for (family, source, kind), count in counts.items()
    )
    return SetFacts(
        groups=groups,
        num_problems=total,
        num_tokens=total_tokens,
        domains=tuple(_domains(problems, tokens)),
        answers=_answers(problems, count_tokens),
        tests=tuple(_tests(problems)),
        platforms=_platforms(problems),
        rubrics=_rubrics(problems),
        turns=_turns(problems),
        num_pairs=len(preference_candidates(problems)),
    )


def _domains(problems: Sequence[Problem], tokens: Sequence[int]) -> Iterator[DomainGroup]:
    """Families in the order of Table 5, the largest domain first."""
    counts: Counter[Tag] = Counter()
    sums: Counter[Tag] = Counter()
    for problem, number in zip(problems, tokens, strict=True):
        if tag := tag_problem(problem):
            counts[tag] += 1
            sums[tag] += number
    for tag in sorted(counts, key=lambda tag: (FAMILIES.index(tag.family), -counts[tag], tag.domain)):
        yield DomainGroup(
            family=tag.family,
            domain=tag.domain,
            num_problems=counts[tag],
            share=counts[tag] / len(problems),
            num_tokens=sums[tag],
            token_share=sums[tag] / max(sum(tokens), 1),
        )


def modality(problem: Problem) -> str:
    """How a problem is answered: by what its tests are, with tools, or in how many turns."""
    declared = problem.ground_truth.get("modality")
    if isinstance(declared, str):
        return declared
    if problem.tools:
        return "tools"
    return "multi-turn" if _num_turns(problem) > 1 else "single turn"


def preference_candidates(problems: Sequence[Problem]) -> list[Candidate]:
    """The pairs of those problems that hold one, valid or not (RM-D1)."""
    return [candidate for problem in problems if (candidate := candidate_of(problem)) is not None]


def _answers(problems: Sequence[Problem], count_tokens: CountTokens) -> AnswerFacts | None:
    labels = [label for problem in problems if isinstance(label := problem.ground_truth.get("answer"), str)]
    short = [number for number in count_tokens(labels) if number <= SHORT_LABEL_TOKENS]
    if not short:
        return None
    return AnswerFacts(num_short=len(short), share=len(short) / len(problems), median_tokens=median(short))


def _tests(problems: Sequence[Problem]) -> list[TestFacts]:
    sizes: dict[str, list[int]] = {}
    for problem in problems:
        tests = problem.ground_truth.get("tests")
        if isinstance(tests, list) and isinstance(problem.ground_truth.get("modality"), str):
            sizes.setdefault(modality(problem), []).append(len(tests))
    return [
        TestFacts(modality=name, num_problems=len(each), least=min(each), median=median(each), most=max(each))
        for name, each in sizes.items()
    ]


def _platforms(problems: Sequence[Problem]) -> dict[str, int]:
    truths = [problem.ground_truth for problem in problems if "tests" in problem.ground_truth]
    counts = Counter(name for truth in truths if (name := platform_of(truth)))
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _rubrics(problems: Sequence[Problem]) -> RubricFacts | None:
    lists = [rubrics for problem in problems if (rubrics := _rubrics_of(problem))]
    if not lists:
        return None
    kinds = Counter(str(rubric.get("kind", "?")) for rubrics in lists for rubric in rubrics)
    return RubricFacts(
        by_count=dict(sorted(Counter(map(len, lists)).items())),
        by_kind=dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0]))),
        mean=fmean(map(len, lists)),
    )


def _rubrics_of(problem: Problem) -> list[dict[str, Json]]:
    rubrics = problem.ground_truth.get("rubrics")
    return [each for each in rubrics if isinstance(each, dict)] if isinstance(rubrics, list) else []


def _turns(problems: Sequence[Problem]) -> TurnFacts | None:
    several = [problem for problem in problems if _num_turns(problem) > 1]
    if not several:
        return None
    return TurnFacts(
        num_problems=len(several),
        mean_turns=fmean(map(_num_turns, several)),
        num_with_system=sum(problem.prompt[0].role == "system" for problem in several),
    )


def _num_turns(problem: Problem) -> int:
    return sum(message.role == "user" for message in problem.prompt)
