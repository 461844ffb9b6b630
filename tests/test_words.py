"""The words of the project: plain terms of the field, papers by authors and year, leading zeros, American spelling."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = sorted((ROOT / "src").rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECIPES = sorted((ROOT / "src").rglob("*.toml"))

PHRASES = {
    r"\b(?:begun|begins?|began|starts?|started) (?:afresh|anew)\b": "restarted, or fresh",
    r"\bsick\b": "diverged",
    r"\b(?:told|tells?|telling)\b[^.;:]{0,30} apart\b": "distinguish, or detect",
    r"\btells? \w+ from (?:the )?(?:test|data|noise)\b": "detects, with its AUROC",
    r"\btold from\b": "distinguished from",
    r"\bintruders?\b": "OOD set",
    r"\boff by [\d.]+ points\b": "expected calibration error",
    r"\bsays? yes to\b": "predicted positives",
    r"\b(?:is|was|were) wanted\b": "leave it out, or name the target",
    r"\bwhat users draw\b": "samples",
    r"\bcompiler that fails\b": "on a compiler failure",
    r"\bhow much \w+ are like the data\b": "score for out-of-distribution detection",
    r"\bin \d+ of 100 cases\b": "AUROC, or FPR at 95 % TPR",
    r"\bnothing is so\b": "there are no positives",
    r"\bgradients? by (?:x|z|codes?|the (?:code|input))\b": "gradient with respect to",
    r"\b(?:for|of) callers inside\b": "internal callers",
    r"\bthe host waits\b": "waits for the device",
    r"\b(?:public|at the) door\b": "public function, or interface",
    r"\bfeels? (?:it|every)\b": "slows down",
    r"\bin vain\b": "without effect",
    r"\bstands? and falls?\b": "depend on each other",
    r"(?<!decision )(?<![\d,])00[0-4](?:'s\b|, (?:appendix|section|table|figure|equation|[A-H]\b))": "authors and year",
}
BRITISH = re.compile(
    r"\b(?:grey|colour\w*|behaviour\w*|neighbour\w*|labell\w+|modell\w+|favour\w*|centres?|centred"
    r"|(?:normal|optim|initial|general|regular|margin|standard|minim|maxim|summar|organ|visual|util)is(?:e[sd]?|ing|ation)"
    r"|analys(?:e[sd]?|ing)|learnt|whilst)\b",
    re.IGNORECASE,
)
BARE_FRACTION = re.compile(r"(?<![\w.\])}/$`'\"*-])-?\.\d")
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|<[^>\n]*>", re.DOTALL)


def prose_of(source: str) -> Iterator[str]:
    """Comments, docstrings and other strings of several words: what a reader or a user sees."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            if "rem; " in node.value:  # CSS
                continue
            yield node.value


def text_of(path: Path) -> str:
    """The prose of a file, without code, links and names in backticks."""
    text = path.read_text()
    if path.suffix == ".py":
        text = "\n".join(prose_of(text))
    return CODE.sub(" ", re.sub(r"<style>.*?</style>", " ", text, flags=re.DOTALL))


def faults(text: str) -> list[str]:
    found = [f"{m[0]!r}: write {better}" for bad, better in PHRASES.items() for m in re.finditer(bad, text, re.I)]
    found += [f"{m[0]!r}: write it in American spelling" for m in BRITISH.finditer(text)]
    found += [f"{text[m.start() : m.end() + 6]!r}: write a leading zero" for m in BARE_FRACTION.finditer(text)]
    return found


@pytest.mark.parametrize("path", [*PAGES, *RECIPES, *SOURCE], ids=lambda path: str(path.relative_to(ROOT)))
def test_words_are_those_of_the_field(path):
    """Fails for a phrase that readers stumbled over, a paper by its number, a bare fraction or British spelling."""
    assert not faults(text_of(path))


@pytest.mark.parametrize(
    "text",
    [
        "diverged chains are begun afresh",
        "12 chains were sick",
        "log p(x) tells KMNIST from the test digits",
        "data and chains are told apart",
        "off by 1.1 points in its confidence",
        "the hardest intruders",
        "0.05 was wanted",
        "the gradient by x, for callers inside",
        "say how much inputs are like the data",
        "small chains feel it",
        "JEM (002, appendix A)",
        "an accuracy of .991",
        "grey images of neighbours",
    ],
)
def test_a_wrong_word_is_found(text):
    """Fails where the search itself has become blind."""
    assert faults(text)


def test_right_words_pass():
    assert not faults(
        "Diverged chains are restarted; KMNIST: AUROC 0.991 (Grathwohl et al. 2020, appendix A), gray images."
    )
