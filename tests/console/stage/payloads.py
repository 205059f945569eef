"""Text that would run, or do something else that nobody asked for, if a page took it for more than text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# Each would say so by calling alert, which the page's guard records.
PAYLOADS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "<svg onload=alert(3)>",
    "<svg><script>alert(4)</script></svg>",
    "<iframe srcdoc='<script>parent.alert(5)</script>'></iframe>",
    "<iframe src=javascript:alert(6)></iframe>",
    "<a href=javascript:alert(7)>x</a>",
    "<body onload=alert(8)>",
    "<details open ontoggle=alert(9)>",
    "<video><source onerror=alert(10)>",
    "<input autofocus onfocus=alert(11)>",
    "<object data=javascript:alert(12)>",
    "<embed src=javascript:alert(13)>",
    "<math href=javascript:alert(14)>x</math>",
    "<style>@import 'javascript:alert(15)';</style>",
    "<link rel=stylesheet href=javascript:alert(16)>",
    "<base href=//evil.example>",
    "<meta http-equiv=refresh content='0;url=javascript:alert(17)'>",
    "<form action=javascript:alert(18)><button>x",
    "javascript:alert(19)",
    "data:text/html,<script>alert(20)</script>",
    '"><script>alert(21)</script>',
    "'><img src=x onerror=alert(22)>",
    "</title><script>alert(23)</script>",
    "</textarea><script>alert(24)</script>",
    "</script><script>alert(25)</script>",
    "{{constructor.constructor('alert(26)')()}}",
    "${alert(27)}",
    "`;alert(28);`",
    "';alert(29);//",
    "<img src=x onerror=alert&lpar;30&rpar;>",
    "<x contenteditable onblur=alert(31)>",
    "<noscript><p title='</noscript><img src=x onerror=alert(32)>'>",
    "<template><script>alert(33)</script></template>",
)
# In a terminal: titles, links, clipboards, answers that a program asks for.
SEQUENCES = (
    "\x1b]0;<img src=x onerror=alert(40)>\x07",
    "\x1b]8;;javascript:alert(41)\x07click\x1b]8;;\x07",
    "\x1b]52;c;YWxlcnQoNDIp\x07",
    "\x1b[21t\x1b[c\x1b]11;?\x07",
)
ALL = (*PAYLOADS, *SEQUENCES)
# HTML reads a slash between attributes as it reads a space, which ids of threads and addresses cannot have.
WITHOUT_SPACES = tuple(payload.replace(" ", "/") for payload in PAYLOADS)
# What no file name has.
AS_FILES = tuple(payload.replace("/", "\u2215") for payload in ALL)

_UNSEEN = re.compile("[\0-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """As the console shows it on a line."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def batches(payloads: Iterable[str], most_chars: int, between: str = "") -> Iterator[str]:
    """Every payload whole, in texts of no more than ``most_chars``."""
    text = ""
    for payload in payloads:
        if text and len(text) + len(between) + len(payload) > most_chars:
            yield text
            text = ""
        text = f"{text}{between}{payload}" if text else payload
    yield text
