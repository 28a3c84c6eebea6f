"""What mkdocs needs beside the pages in this folder: API pages, results, and the gallery.

API pages are made from the public names, so that no page is forgotten; the gallery runs every example and shows what
it printed and drew.
"""

from __future__ import annotations

import ast
import html
import re
import sys
from collections import defaultdict
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
from gallery import gallery
from page_numbers import without_keys

ROOT = Path(__file__).parent.parent
TOP_PAGES = {"CHANGELOG.md": "CHANGELOG.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}
LLMS_INTRODUCTION = """Install with `pip install .`; `import gapscope as gs`. Functions take a network and its training
data: `gs.check`, `gs.forecast_accuracy`, `gs.estimate_accuracy`, `gs.learning_curve`, `gs.find_label_issues`,
`gs.estimate_label_noise`, `gs.measure`, `gs.compare`, `gs.rank_networks`, `gs.train`, `gs.Monitor`. Results have
`to_pandas`, `to_dict`, `to_json`. Commands of `gapscope` take `--json` (an object; keys in json.html). Exit
status: 0 done; 1 an error that the message explains, or a finding of `check --fail-on`; 2 a wrong command line; 3
no answer, or a code of `--fail-on` that was not checked; 130 stopped."""
PACKAGES = {
    "checks": "Check",
    "accuracy": "Accuracy on new data",
    "gap": "Estimate the gap",
    "labels": "Label errors",
    "measures": "Measures",
    "functional": "Measures as functions",
    "leaderboard": "Compare networks, rank measures",
    "training": "Train and monitor",
    "penalties": "Penalties",
    "batch_norm": "Batch normalization",
    "pools": "Many networks",
    "report": "Report",
    "networks": "Networks",
    "data": "Data",
    "base": "Samples and specs",
    "results": "Results",
    "theory": "Theory",
    "integrations": "Integrations",
}


def _imported(path: Path, package: str) -> dict[str, str]:
    """Public name -> path of the object: every `from ... import name as name` in a file, and names of its `__all__`."""
    tree = ast.parse(path.read_text())
    listed: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            listed = set(ast.literal_eval(node.value))
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        module = node.module or ""
        if node.level:
            module = ".".join(filter(None, [package, module]))
        names |= {
            alias.asname or alias.name: f"{module}.{alias.name}"
            for alias in node.names
            if alias.asname or alias.name in listed
        }
    return names


def _public_names() -> dict[str, list[tuple[str, str]]]:
    """Package -> (public name, path of the object)."""
    source = ROOT / "src/gapscope"
    packages: dict[str, dict[str, str]] = defaultdict(dict)
    for name, path in _imported(source / "__init__.pyi", "gapscope").items():
        if path.count(".") > 1:  # else a package
            packages[path.split(".")[1]][name] = path
    for package in PACKAGES:
        places = (f"{package}.py", f"{package}/__init__.pyi", f"{package}/__init__.py")
        file = next(source / place for place in places if (source / place).exists())
        for name, path in _imported(file, f"gapscope.{package}").items():
            packages[package].setdefault(name, path)
    return {
        package: sorted(names.items(), key=lambda item: item[0].lower())
        for package, names in packages.items()
    }


def _api_pages() -> dict[str, str]:
    result = _public_names()
    pages, index = {}, ["# Packages", ""]
    for package, title in PACKAGES.items():
        if not result.get(package):
            raise ValueError(f"The package {package} has no public names.")
        pages[f"api/{package}.md"] = "\n".join(
            [f"# {title}", "", *(f"::: {path}\n" for _, path in result[package])]
        )
        index += [
            f"## [{title}]({package}.md)",
            "",
            ", ".join(f"`{name}`" for name, _ in result[package]),
            "",
        ]
    return {"api/index.md": "\n".join(index), **pages}


def _root_page(name: str) -> str:
    """A page of the repository's top, with its links as they are on the site."""
    text = (ROOT / name).read_text()
    text = text.replace("](docs/", "](").replace("](results/)", "](results/README.md)")
    return re.sub(
        r"\]\((LICENSE|SECURITY.md|examples/[^)]*|src/[^)]*|tests/[^)]*|benchmarks/[^)]*)\)",
        "]",
        text.replace("](README.md", "](index.md"),
    )


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in this folder."""
    for name, target in TOP_PAGES.items():
        files.append(File.generated(config, target, content=_root_page(name)))
    for path in sorted((ROOT / "results").rglob("*")):
        if path.suffix in {".md", ".svg", ".html"}:
            uri = path.relative_to(ROOT).as_posix()
            content = path.read_bytes() if path.suffix == ".html" else path.read_text()
            files.append(File.generated(config, uri, content=content))
    for uri, content in _api_pages().items():
        files.append(File.generated(config, uri, content=content))
    files.append(File.generated(config, "llms.txt", content=_llms_txt(config)))
    for uri, content in gallery().items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to results/ and examples/ leave the folder in the repository, but not on the site; keys of numbers go."""
    if page.file.src_uri.startswith("results/"):
        return re.sub(r"\]\(((?:\.\./)+)docs/", r"](\1", markdown)
    markdown = re.sub(
        r"\]\(\.\./examples/(\w+)\.py\)", r"](examples/\1.md)", without_keys(markdown)
    )
    markdown = markdown.replace("](../examples)", "](examples/index.md)")
    return re.sub(r"\]\(\.\./((?:\.\./)*)results/", r"](\1results/", markdown)


def _llms_txt(config: MkDocsConfig) -> str:
    """Index of the site for programs: what gapscope answers, and one line per guide with its first sentence."""
    lines = [
        "# gapscope",
        "",
        f"> {config.site_description}",
        "",
        LLMS_INTRODUCTION,
        "",
        "## Guides",
        "",
    ]
    for path in sorted((ROOT / "docs").glob("*.md")):
        text = re.sub(r"```.*?```", "", without_keys(path.read_text()), flags=re.DOTALL)
        first = next(
            block
            for block in text.split("\n\n")[1:]
            if block.strip() and block.strip()[0] not in "|#"
        )
        summary = " ".join(first.split()).replace("**", "").split(". ")[0].rstrip(".:")
        lines.append(f"- [{text.splitlines()[0].lstrip('# ')}]({path.stem}.html): {summary}.")
    lines += [
        "",
        "## Reference",
        "",
        "- [Packages](api/index.html): every public name with its signature.",
    ]
    lines += [
        "- [Gallery](examples/index.html): executed scripts.",
        "- [Evidence](evidence/check.html): what was measured.",
    ]
    return "\n".join([*lines, ""])


FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.DOTALL)


def _mathml(match: re.Match[str]) -> str:
    formula = html.unescape(match[3]).strip()
    if match[2] != "[":
        return convert(formula, display="inline")
    return f'<div class="formula">{convert(formula, display="block")}</div>'


def on_page_content(content: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas become MathML here, so that the reader's browser loads no script for them."""
    return FORMULA.sub(_mathml, content)


SHIM = "https://unpkg.com/iframe-worker/shim"


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Search from file:// needs a substitute for web workers: the site's own, not one from the network."""
    return output.replace(SHIM, "../" * page.url.count("/") + "search_worker.js")
