"""The Search Agent environment: SA-E1, SA-E2, SA-E5, SEV-03, SEV-06 and SEV-07."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.generators import search_corpus
from rufus_core.data.pages import Page, PageIndex, format_hits
from rufus_core.errors import DataError
from rufus_core.gym.search import SearchEnvironment, SearchGym, domain_of
from rufus_core.rewards.judges import LexicalJudge
from rufus_core.types import Episode, Message, Problem, Termination, ToolCall, ToolResult

PROBLEMS = list(search_corpus.problems(2, 200, {}))


@dataclass(frozen=True)
class Finished:
    status: str
    stdout: str
    stderr: str


class Subprocess:
    """A real interpreter without a sandbox: these tests' programs are their own."""

    def run(self, program: str, stdin: str, timeout_seconds: float) -> Finished:
        done = subprocess.run(
            [sys.executable, "-I", "-c", program], input=stdin, capture_output=True, text=True, timeout=timeout_seconds
        )
        return Finished("ok" if done.returncode == 0 else "error", done.stdout, done.stderr)


GYM = SearchGym(Subprocess(), LexicalJudge())

WEB = PageIndex(
    [
        Page("https://wiki.example/ann", "Ann Dover", "Person. Lives in Lyon."),
        Page("https://answers.example/ann", "Ann Dover answers", "Ann Dover lives in Lyon."),
        Page("https://mirror.answers.example/ann", "Ann Dover answers", "Ann Dover lives in Lyon."),
        Page("https://notanswers.example/long", "Long", "one two three four five six"),
    ]
)
WEB_GYM = SearchGym(
    Subprocess(), LexicalJudge(), backend=WEB, blocked_domains=("Answers.example",), max_page_words=4, num_results=10
)


def use(environment: SearchEnvironment, name: str, argument: str) -> ToolResult:
    key = {"search": "query", "scrape": "url", "python": "code"}[name]
    return environment.call(ToolCall(name=name, arguments={key: argument}))


def played(problem: Problem, messages: list[Message]) -> tuple[Episode, list[str]]:
    """The episode of these messages in a real environment, and what it really said."""
    environment = GYM.open(problem)
    results = [environment.call(call) for message in messages for call in message.tool_calls]
    good = sum(not result.failed for result in results)
    episode = Episode(problem, [*problem.prompt, *messages], Termination.TASK_COMPLETE, len(results), good)
    environment.cleanup()
    environment.cleanup()
    return episode, [result.content for result in results]


@pytest.mark.parametrize("wrong", [False, True])
def test_demonstrations_see_what_the_environment_says(wrong: bool) -> None:
    rng = random.Random(7)
    for problem in PROBLEMS:
        messages = search_corpus.demonstrate(problem, rng, wrong)
        episode, said = played(problem, messages)
        assert said == [message.content for message in messages if message.role == "tool"]
        verdict = GYM.open(problem).score(episode)
        assert (verdict.score, verdict.passed) == ((0.0, False) if wrong else (1.0, True))


def test_answers_need_the_pages_and_snippets_do_not_tell_them_SA_E6() -> None:
    for problem in PROBLEMS:
        messages = search_corpus.demonstrate(problem, random.Random(0), wrong=False)
        observations = [message.content for message in messages if message.role == "tool"]
        snippets = [line.split(" | ")[2] for line in observations[0].splitlines()]
        for item in problem.ground_truth["answer"].split(", "):
            assert any(item in page for page in observations[1:])
            assert not any(item in snippet for snippet in snippets)
        assert len(observations) <= 3
        assert all(len(page.split()) <= 15 for page in observations[1:])


def test_three_tools_are_offered_SA_E1() -> None:
    environment = GYM.open(PROBLEMS[0])
    assert [tool.name for tool in environment.tools] == ["search", "scrape", "python"]
    assert tuple(environment.tools) == PROBLEMS[0].tools


def test_python_runs_programs_and_tells_their_errors_SA_E1() -> None:
    environment = GYM.open(PROBLEMS[0])
    assert use(environment, "python", "print(6 * 7)") == ToolResult("42")
    assert use(environment, "python", "x = 1") == ToolResult("no output")
    failed = use(environment, "python", "1 / 0")
    assert failed == ToolResult("error: ZeroDivisionError: division by zero", failed=True)


def test_blocked_domains_are_dropped_from_results_SEV_06() -> None:
    environment = WEB_GYM.open(PROBLEMS[0])
    assert use(environment, "search", "Ann Dover").content == "Ann Dover | https://wiki.example/ann | Person."


@pytest.mark.parametrize(
    "url",
    [
        "https://answers.example/ann",
        "https://mirror.answers.example/ann",
        "HTTPS://ANSWERS.EXAMPLE/ann",
        "answers.example/ann",
        "//answers.example/ann",
        "https://me@answers.example:443/ann",
        "https://answers.example./ann",
        "https:/answers.example/ann",
        " https:\\\\answers.example\\ann",
        "https://%61nswers.example/ann",
        "https://\uff41nswers.example/ann",
        "https://answers\u3002example/ann",
        "https://ans\u00adwers.example/ann",
        "https://wiki.example%2f@answers.example/ann",
    ],
)
def test_blocked_domains_are_refused_by_scrape_SEV_06(url: str) -> None:
    assert use(WEB_GYM.open(PROBLEMS[0]), "scrape", url) == ToolResult("error: domain blocked", failed=True)


def test_other_domains_are_not_blocked_SEV_06() -> None:
    assert not use(WEB_GYM.open(PROBLEMS[0]), "scrape", "https://notanswers.example/long").failed


@pytest.mark.parametrize("url", ["wiki/Nobody", "", "http://[", "wiki/../etc"])
def test_an_unreachable_page_is_an_observation_SEV_07(url: str) -> None:
    result = use(GYM.open(PROBLEMS[0]), "scrape", url)
    assert result.failed
    assert result.content.startswith("error: ")


def test_a_long_page_is_truncated_with_a_note_SEV_03() -> None:
    result = use(WEB_GYM.open(PROBLEMS[0]), "scrape", "https://notanswers.example/long")
    assert result == ToolResult("one two three four [truncated: 4 of 6 words]")


def test_a_long_page_goes_through_the_condenser_SA_E2() -> None:
    class Last:
        def condense(self, text: str, max_words: int) -> str:
            return " ".join(text.split()[-max_words:])

    gym = SearchGym(Subprocess(), LexicalJudge(), backend=WEB, max_page_words=4, condenser=Last())
    environment = gym.open(PROBLEMS[0])
    assert use(environment, "scrape", "https://notanswers.example/long").content == "three four five six"
    assert use(environment, "scrape", "https://wiki.example/ann").content == "Person. Lives in Lyon."


def test_a_search_without_hits_says_so() -> None:
    assert use(GYM.open(PROBLEMS[0]), "search", "zzz") == ToolResult("no results")


@pytest.mark.parametrize(
    "call", [ToolCall(name="browse", arguments={"url": "x"}), ToolCall(name="search", arguments={"query": 3})]
)
def test_a_call_that_fits_no_tool_is_an_observation(call: ToolCall) -> None:
    assert GYM.open(PROBLEMS[0]).call(call).failed


def test_a_problem_without_an_answer_is_the_users_mistake() -> None:
    with pytest.raises(DataError):
        GYM.open(Problem.build("person", "test", [Message(role="user", content="x")], {"corpus": 0}))


def test_results_are_ranked_by_rare_words_and_pairs_in_titles() -> None:
    hits = search_corpus.build_corpus(0).index.search("Where do Ann Dover and Ben Lyon live?", 2)
    assert {hit.title for hit in hits} == {"Ann Dover", "Ben Lyon"}
    assert format_hits([]) == "no results"


@given(st.text(max_size=60), st.integers(0, 5))
def test_any_query_gets_at_most_the_limit_and_the_same_again(query: str, limit: int) -> None:
    index = search_corpus.build_corpus(0).index
    hits = index.search(query, limit)
    assert len(hits) <= limit
    assert hits == index.search(query, limit)
    assert all(index.fetch(hit.url) for hit in hits)


@given(st.text(max_size=60))
def test_any_text_is_an_address_with_or_without_a_domain(url: str) -> None:
    host = domain_of(url)
    assert "/" not in host or "%" in url
    assert host == host.casefold()


def test_problems_are_deterministic_and_distinct() -> None:
    assert list(search_corpus.problems(2, 200, {})) == PROBLEMS
    assert list(search_corpus.problems(3, 200, {})) != PROBLEMS
    assert len({problem.prompt for problem in search_corpus.problems(0, 3000, {})}) == 3000
    assert {problem.family for problem in PROBLEMS} == {"person", "thing", "owner", "pair"}


def test_another_corpus_gives_other_answers_to_the_same_questions() -> None:
    def answers(corpus: int) -> dict[str, str]:
        made = search_corpus.problems(2, 864, {"corpus": corpus, "families": ["person"]})
        return {problem.prompt[-1].content: problem.ground_truth["answer"] for problem in made}

    first, second = answers(0), answers(1)
    assert first.keys() == second.keys()
    assert sum(first[question] == second[question] for question in first) < 150


def test_no_fact_is_asked_for_in_two_phrasings() -> None:
    made = list(search_corpus.problems(0, 864, {"families": ["person"]}))
    pages = Counter(problem.ground_truth["solution"][1]["arguments"]["url"] for problem in made)
    assert set(pages.values()) == {3}  # home, birth and liking of each person, once
    for seed in (1, 2):
        again = {problem.id for problem in search_corpus.problems(seed, 864, {"families": ["person"]})}
        assert again == {problem.id for problem in made}


def test_mistakes_in_options_are_told() -> None:
    with pytest.raises(DataError, match="riddle"):
        next(search_corpus.problems(0, 1, {"families": ["riddle"]}))
    with pytest.raises(DataError, match="asked for"):
        next(search_corpus.problems(0, 10**6, {}))
