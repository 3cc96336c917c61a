"""Check the prose and the links of the documentation: ``python scripts/prose.py [FILE ...]``.

Prints ``file:line: problem`` for each problem, and exits with 1 if there is one. The rules are in
``scripts/prose.toml``. MkDocs checks the links between pages in ``docs``; this script checks those
of the files that MkDocs does not build, and the pictures and anchors that these name.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RULES = tomllib.loads((ROOT / "scripts" / "prose.toml").read_text(encoding="utf-8"))
FRONT_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
GLOSSARY = "glossary.md"

FENCE = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.S | re.M)
CODE = re.compile(r'``.+?``|`[^`\n]+`|"[\w-]+"', re.S)  # a quoted word is a value
ADDRESS = re.compile(r"https?://[^\s)>]+|<[^>]+>")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)[^)]*\)")
SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n|\n[ *\-|#>]|[|·]")


def main() -> int:
    """Print the problems of the named files, or of all pages."""
    pages = [Path(name).resolve() for name in sys.argv[1:]] or all_pages()
    problems = [f"{name(page)}:{problem}" for page in pages for problem in check(page)]
    print("\n".join(problems) or f"prose: {len(pages)} pages, no problems")
    return int(bool(problems))


def all_pages() -> list[Path]:
    """Return the files in the root and every page in ``docs``."""
    return [ROOT / page for page in FRONT_PAGES] + sorted(ROOT.glob("docs/**/*.md"))


def name(page: Path) -> str:
    """Return the path of a page, relative to the root if it is below it."""
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else str(page)


def check(page: Path) -> list[str]:
    """Return ``line: problem`` for each problem of a page, in the order of lines."""
    text = page.read_text(encoding="utf-8")
    prose = without_code(text)
    problems = [*wrong_words(prose), *long_sentences(prose), *undefined_terms(page, text, prose)]
    if page.parent == ROOT:
        problems += broken_links(page, text)
    return [f"{line}: {problem}" for line, problem in sorted(problems)]


def without_code(text: str) -> str:
    """Replace code and addresses by blanks, so that the other text keeps its line numbers."""
    for pattern in (FENCE, CODE, ADDRESS):
        text = pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    return LINK.sub(lambda match: match[0].replace(match[1], " " * len(match[1])), text)


def line_of(text: str, offset: int) -> int:
    """Return the line number of an offset."""
    return text.count("\n", 0, offset) + 1


def wrong_words(prose: str) -> Iterator[tuple[int, str]]:
    """Yield the words of the list, each with its replacement."""
    for pattern, replacement in RULES["words"].items():
        for match in re.finditer(pattern, prose, re.IGNORECASE):
            yield line_of(prose, match.start()), f"{match[0]!r}: write {replacement!r}"


def long_sentences(prose: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences with too many words."""
    start = 0
    for end in [*(match.end() for match in SENTENCE_END.finditer(prose)), len(prose)]:
        words = re.findall(r"[A-Za-z][\w'-]*", prose[start:end])
        if len(words) > RULES["longest_sentence"]:
            yield line_of(prose, start), f"a sentence of {len(words)} words: {' '.join(words[:6])}"
        start = end


def undefined_terms(page: Path, text: str, prose: str) -> Iterator[tuple[int, str]]:
    """Yield the first use of a term on a page that neither defines it nor links to the glossary."""
    if page.name == GLOSSARY or "adr" in page.parts:
        return
    for pattern, term in RULES["terms"].items():
        match = re.search(pattern, prose, re.IGNORECASE)
        anchor = f"{GLOSSARY}#{term.replace(' ', '-')}"
        if match is not None and anchor not in text:
            yield line_of(prose, match.start()), f"{match[0]!r}: link it to {anchor}"


def broken_links(page: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield the relative links to files or headings that do not exist."""
    visible = FENCE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for match in LINK.finditer(visible):
        path, _, anchor = match[1].partition("#")
        if ADDRESS.match(match[1]):
            continue
        target = page.parent / path if path else page
        if not target.exists():
            yield line_of(text, match.start()), f"{path} does not exist"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield line_of(text, match.start()), f"{path} has no heading #{anchor}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as MkDocs writes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    slugs = set()
    for heading in headings:
        words = re.sub(r"[^\w\s-]", "", heading.lower()).strip()
        slugs.add(re.sub(r"[\s-]+", "-", words))
    return slugs


if __name__ == "__main__":
    sys.exit(main())
