"""A page as its tags, texts and rows, to test what people see of it."""

from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "input", "hr", "col"}


class Page(HTMLParser):
    """Tags with attributes, the rows of all tables, and whatever does not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[str] = []
        self.stack: list[str] = []
        self.unbalanced: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append("")
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.stack or self.stack.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        if "style" in self.stack:
            return
        self.text += data
        if "tr" in self.stack:
            self.rows[-1] += " " + data
