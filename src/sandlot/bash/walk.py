"""Walks over a parse tree and lists everything that the text runs, writes and assigns.

Every kind of node has its place here or in the tables of ``nodes``. A kind that has none, an error of the
parser, or text that bash is known to read in another way than the parser, is reported as unclear.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from sandlot.bash import nodes
from sandlot.bash.budget import Budget
from sandlot.bash.heredocs import Heredoc, read_heredoc
from sandlot.bash.variables import HIDDEN_IN_QUOTES, declared, variable
from sandlot.bash.words import WordReader, is_hiding, is_hiding_in_quotes, node_text, plain_words
from sandlot.bash.wrappers import NOTHING, Runs, as_script, what_runs
from sandlot.domain.policy.commands import (
    UNKNOWN,
    WILDCARD,
    Assignment,
    Command,
    Step,
    Unclear,
    Word,
    Write,
)

if TYPE_CHECKING:
    from tree_sitter import Node

# Where a program's name should be, these are syntax that the parser did not recognize.
_RESERVED: Final = frozenset({
    "{", "}", "!", "[[", "]]", "if", "then", "else", "elif", "fi", "do", "done", "case", "esac", "in",
    "while", "until", "for", "function", "select",
})  # fmt: skip
_READS: Final = frozenset({"<", "<&"})
_HARMLESS_FILES: Final = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"})
_CONNECTIONS: Final = ("/dev/tcp/", "/dev/udp/")
_PRINTERS: Final = frozenset({"cat", "echo", "printf"})
_CHANGES_FOLDER: Final = frozenset({"cd", "pushd"})

NOT_IN_TEXT: Final = "runs a program whose name is not in the text"
UNKNOWN_SCRIPT: Final = "runs a script that is not in the text"

Programs = tuple[str, ...]


class Walk:
    """``Budget`` is shared with the walks over scripts inside the text."""

    def __init__(self, budget: Budget, folders: list[str]) -> None:
        self.steps: list[Step] = []
        self.unclear: list[Unclear] = []
        self._budget = budget
        self._folders = folders
        self._piped: Word | None = None  # what the command before in a pipe prints
        self._reads_twice = 0  # how many nodes that bash reads twice the walk is in

    # --- statements ---------------------------------------------------------------------------

    def visit(self, node: Node, upstream: Programs = ()) -> Programs:
        """Look into a node; return the programs that it runs. ``upstream``: those before it in a pipe."""
        kind = node.type
        if kind == "command":
            return self._command(node, (), upstream)
        if self._reads_twice and kind in nodes.QUOTED and is_hiding_in_quotes(node):
            self._doubt(node, HIDDEN_IN_QUOTES)
        if kind in nodes.HOLDERS and not (kind == "compound_statement" and node.children[0].type == "(("):
            return self._each(node.named_children, upstream)
        if kind in nodes.LEAVES:
            if is_hiding(node.text or b""):
                self._doubt(node, "has a substitution that the parser does not see")
            return ()
        if kind in nodes.LITERALS:
            return ()
        return self._special(node, kind, upstream)

    def _special(self, node: Node, kind: str, upstream: Programs) -> Programs:
        if kind == "pipeline":
            return self._pipeline(node, upstream)
        if kind == "redirected_statement":
            return self._redirected(node, upstream)
        if kind in ("variable_assignment", "for_statement"):
            self._assign(node)
            return self._each(node.named_children, upstream)
        if kind == "function_definition":
            return self._function(node, upstream)
        if kind == "declaration_command":
            return self._declaration(node, upstream)
        if kind in nodes.READ_TWICE or kind == "compound_statement":
            if kind == "expansion":
                self._expansion(node)
            self._reads_twice += 1
            programs = self._each(node.named_children, upstream)
            self._reads_twice -= 1
            return programs
        if kind in nodes.REDIRECTS:
            return self._redirects([node], upstream)[1]
        why = "is not valid bash" if kind == "ERROR" else f"has syntax that is not known here ({kind})"
        self._doubt(node, why)
        return self._each(node.named_children, upstream)

    def _each(self, nodes: Iterable[Node], upstream: Programs) -> Programs:
        programs: Programs = ()
        self._budget.enter()
        for node in nodes:
            programs += self.visit(node, upstream)
        self._budget.leave()
        return programs

    def _pipeline(self, node: Node, upstream: Programs) -> Programs:
        programs: Programs = ()
        self._budget.enter()
        for child in node.named_children:
            before = len(self.steps)
            programs += self.visit(child, upstream + programs)
            self._piped = self._printed(self.steps[before:])
        self._budget.leave()
        self._piped = None
        return programs

    def _printed(self, steps: Sequence[Step]) -> Word | None:
        """What a command prints, if that is simply its arguments or its here-document."""
        if len(steps) != 1 or not isinstance(steps[0], Command) or steps[0].program not in _PRINTERS:
            return None
        words = (*steps[0].arguments, *steps[0].inputs)
        texts = [word.text for word in words if not word.text.startswith("-")]
        return Word("|", " ".join(texts).replace(WILDCARD, "*"))

    def _redirected(self, node: Node, upstream: Programs) -> Programs:
        redirects = [child for child in node.named_children if child.type in nodes.REDIRECTS]
        bodies = [child for child in node.named_children if child.type not in nodes.REDIRECTS]
        self._check_gaps(node)
        if len(bodies) == 1 and bodies[0].type == "command":
            return self._command(bodies[0], redirects, upstream)
        programs = self._each(bodies, upstream)
        return programs + self._redirects(redirects, upstream + programs)[1]

    def _function(self, node: Node, upstream: Programs) -> Programs:
        names = [node_text(child) for child in node.named_children if child.type == "word"]
        programs = self._each((child for child in node.named_children if child.type != "word"), upstream)
        if any(name in programs for name in names):
            self._doubt(node, "defines a function that calls itself")
        return programs

    def _assign(self, node: Node) -> None:
        """The variable comes first in an assignment, a loop and an expansion."""
        if node.named_children:
            self._add(Assignment(variable(node_text(node.named_children[0]))))

    def _declaration(self, node: Node, upstream: Programs) -> Programs:
        """Quoted words are read twice. Values are not, unless they are computed."""
        reader = WordReader()
        words: list[Word] = []
        for child in node.named_children:
            text = node_text(child)
            words += [Word(text, text)] if child.type == "variable_assignment" else reader.words(child)
        names, is_computed = declared(words)
        for name in names:
            self._add(Assignment(name))
        programs: Programs = ()
        self._check_gaps(node)
        for child in node.named_children:
            is_value = child.type == "variable_assignment"
            self._reads_twice += is_computed or not is_value
            programs += self._each(child.named_children if is_value else [child], upstream)
            self._reads_twice -= is_computed or not is_value
        return programs

    def _expansion(self, node: Node) -> None:
        if "@P" in node_text(node):
            self._doubt(node, "expands a variable as a prompt, which can run commands")
        if any(child.type in ("=", ":=") for child in node.children):
            self._assign(node)

    # --- commands -----------------------------------------------------------------------------

    def _command(self, node: Node, redirects: Sequence[Node], upstream: Programs) -> Programs:
        self._budget.enter()
        reader = WordReader()
        own_redirects = list(redirects)
        words = plain_words(node)
        feeding: Programs = ()
        if words is None:
            words, feeding = self._words(node, reader, own_redirects, upstream)
        inputs: list[Word | None] = []
        if self._piped is not None:
            # How a program prints its arguments is its own affair: they are looked into, and stay unclear.
            inputs, self._piped = [self._piped, None], None
        behind: Programs = ()
        late: list[Node] = []
        if own_redirects:
            more, behind, late = self._redirects(own_redirects, upstream, reader, words)
            inputs += more
        if reader.doubts:
            for doubt in dict.fromkeys(reader.doubts):
                self._doubt(node, doubt)
        nested = self._each(reader.nested, ()) if reader.nested else ()
        before = len(self.steps)
        programs = self._run(words, inputs, upstream + nested)
        for statement in late:
            self._piped = self._printed(self.steps[before:])
            behind += self.visit(statement, upstream + programs + nested + behind)
        self._budget.leave()
        return feeding + nested + programs + behind

    def _words(
        self, node: Node, reader: WordReader, redirects: list[Node], upstream: Programs
    ) -> tuple[list[Word], Programs]:
        """The words of a command, and what runs for its assignments. Adds the command's own redirections."""
        words: list[Word] = []
        feeding: Programs = ()
        self._check_gaps(node)
        for child in node.children:
            kind = child.type
            if kind == "word":  # most are
                words += reader.words(child)
            elif kind == "variable_assignment":
                feeding += self.visit(child, ())
            elif not child.is_named:
                if kind != "$":  # of $"…"
                    words.append(Word(kind, kind))
            elif kind in nodes.REDIRECTS:
                redirects.append(child)
            elif kind == "subshell":
                feeding += self.visit(child, upstream)
            elif kind != "comment":
                words += reader.words(child)
        return words, feeding

    def _check_gaps(self, node: Node) -> None:
        if why := nodes.misread_gap(node):
            self._doubt(node, why)

    def run_words(self, words: Sequence[Word]) -> None:
        """A program and its arguments, which no shell reads."""
        self._run(words, (), ())

    def _run(self, words: Sequence[Word], inputs: Sequence[Word | None], upstream: Programs) -> Programs:
        """Add a command and everything that it runs in turn. An input of None is not known."""
        if not words:
            return ()
        self._budget.count_words(len(words))
        program = words[0]
        if program.many or UNKNOWN in program.text or WILDCARD in program.text:
            self.unclear.append(Unclear(_sources(words), NOT_IN_TEXT))
            return ()
        if not program.text:
            return ()
        if program.text in _RESERVED and program.source == program.text:
            self.unclear.append(Unclear(_sources(words), "has syntax that the parser does not read"))
            return self._run(words[1:], inputs, upstream)
        arguments = tuple(words[1:])
        known_inputs = tuple(word for word in inputs if word is not None) if inputs else ()
        name = program.text.rpartition("/")[2]
        self._add(Command(program.text, arguments, known_inputs, upstream, tuple(self._folders)))
        if name in _CHANGES_FOLDER:
            self._change_folder(arguments)
        runs = what_runs(name, arguments)
        programs: Programs = (program.text,)
        if runs is not NOTHING:
            self._budget.enter()
            programs += self._runs(runs, _sources(words), inputs, upstream)
            self._budget.leave()
        return programs

    def _runs(
        self, runs: Runs, shown: tuple[str, ...], inputs: Sequence[Word | None], upstream: Programs
    ) -> Programs:
        programs: Programs = ()
        for name in runs.assigns:
            self._add(Assignment(name))
        if runs.folder is not None:
            self._change_folder([runs.folder])
        for why in runs.doubts:
            self.unclear.append(Unclear(shown, why))
        for words in runs.commands:
            programs += self._run(words, inputs, upstream)
        scripts: list[Word | None] = list(runs.scripts)
        if runs.reads_script:
            scripts += inputs
            if len(inputs) != 1:
                scripts.append(None)
        for script in scripts:
            text = None if script is None else as_script(script)
            if text is None:
                self.unclear.append(Unclear(shown, UNKNOWN_SCRIPT))
            else:
                programs += self._script(text, upstream)
        return programs

    def _script(self, text: str, upstream: Programs) -> Programs:
        inner = self._budget.parse(text)
        walk = Walk(self._budget, self._folders)
        programs = walk.visit(inner.root, upstream)
        self.steps += walk.steps
        self.unclear += inner.doubts
        self.unclear += walk.unclear
        return programs

    def _change_folder(self, arguments: Sequence[Word]) -> None:
        target = next((word for word in arguments if not word.text.startswith("-")), None)
        text = "~" if target is None else target.text
        if any(word.text == "-" for word in arguments):
            text = UNKNOWN  # back to the folder before
        if text.startswith(("/", "~", UNKNOWN)):
            self._folders.append(text)
        else:
            self._folders += [f"{folder}/{text}" for folder in self._folders[:1]]
            if ".." in text:
                self._folders.append(UNKNOWN)
        self._budget.check_folders(self._folders)

    # --- redirections -------------------------------------------------------------------------

    def _redirects(
        self,
        redirects: Sequence[Node],
        upstream: Programs,
        reader: WordReader | None = None,
        words: list[Word] | None = None,
    ) -> tuple[list[Word | None], Programs, list[Node]]:
        """The inputs that the redirections give, programs that they run, and statements behind them.

        The parser puts what follows a redirection inside it: more words and, after a here-document, more
        redirections and the rest of a pipe or list.
        """
        inputs: list[Word | None] = []
        programs: Programs = ()
        behind: list[Node] = []
        own = reader or WordReader()
        for node in redirects:
            if nodes.takes_a_word_for_a_number(node):
                self._doubt(node, "has a word that the parser takes for the number of a redirection")
            extra: list[Word] = []
            if node.type == "file_redirect":
                inputs += self._file(node, own)
                extra = [word for child in _destinations(node)[1:] for word in own.words(child)]
            elif node.type == "herestring_redirect":
                inputs += [word for child in node.named_children for word in own.words(child)]
            else:
                heredoc = read_heredoc(node)
                inputs.append(self._heredoc(heredoc, node))
                more, others, statements = self._redirects(heredoc.redirects, upstream, own)
                inputs += more
                programs += others
                behind += statements + list(heredoc.statements)
                extra = [word for child in heredoc.words for word in own.words(child)]
            if words is not None:
                words += extra
            elif extra:
                self._doubt(node, "has words behind a redirection that belong to no command")
                inputs.append(None)
        if reader is None:
            programs += self._each(own.nested, upstream)
            for statement in behind:
                programs += self.visit(statement, upstream + programs)
            behind = []
        return inputs, programs, behind

    def _file(self, node: Node, reader: WordReader) -> list[Word | None]:
        operator = next((child.type for child in node.children if not child.is_named), "")
        self._check_gaps(node)
        targets = [word for target in _destinations(node)[:1] for word in reader.words(target)]
        if operator in _READS:
            for word in targets:
                if word.text.startswith(_CONNECTIONS):
                    self._add(Write(word, tuple(self._folders)))
            return [None]
        for word in targets:
            is_descriptor = operator == ">&" and word.text.rstrip("-").isdigit()
            if not is_descriptor and word.text not in _HARMLESS_FILES and word.source[:2] != ">(":
                self._add(Write(word, tuple(self._folders)))
        return []

    def _heredoc(self, heredoc: Heredoc, node: Node) -> Word | None:
        if heredoc.doubt:
            self._doubt(node, heredoc.doubt)
        self._each(heredoc.expansions, ())
        return None if heredoc.text is None else Word("<<", heredoc.text)

    # --- results ------------------------------------------------------------------------------

    def _add(self, step: Step) -> None:
        self._budget.count_step()
        self.steps.append(step)

    def _doubt(self, node: Node, why: str) -> None:
        if len(self.unclear) < self._budget.MAX_DOUBTS:
            self.unclear.append(Unclear((node_text(node)[:200],), why))


def _destinations(redirect: Node) -> list[Node]:
    """The file of a redirection, and the words behind it."""
    return [child for child in redirect.named_children if child.type not in ("file_descriptor", "ERROR")]


def _sources(words: Sequence[Word]) -> tuple[str, ...]:
    return tuple(word.source for word in words)
