"""Walks over a parse tree and lists everything that the text runs, writes and assigns.

Every kind of node has its place in the tables below. A kind that is in none of them, an error of the parser,
or text that bash is known to read in another way than the parser, is reported as unclear.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from sandlot.bash.budget import Budget
from sandlot.bash.heredocs import Heredoc, read_heredoc
from sandlot.bash.words import WordReader, is_hiding, node_text
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

# Nodes that only hold others.
_HOLDERS: Final = frozenset({
    "program", "list", "subshell", "compound_statement", "do_group", "if_statement", "elif_clause",
    "else_clause", "while_statement", "for_statement", "c_style_for_statement", "case_statement", "case_item",
    "negated_command", "command_substitution", "process_substitution", "test_command", "binary_expression",
    "unary_expression", "ternary_expression", "postfix_expression", "parenthesized_expression", "subscript",
    "arithmetic_expansion", "simple_expansion", "string", "concatenation", "translated_string", "array",
    "variable_assignments", "declaration_command", "unset_command", "command_name",
})  # fmt: skip
# Text without commands in it, as far as the parser can tell.
_LEAVES: Final = frozenset({
    "word", "number", "variable_name", "special_variable_name", "test_operator", "file_descriptor", "regex",
    "extglob_pattern", "string_content", "heredoc_content", "brace_expression",
})  # fmt: skip
_LITERALS: Final = frozenset({"raw_string", "ansi_c_string", "comment", "heredoc_start", "heredoc_end"})
_REDIRECTS: Final = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})
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

    # --- statements ---------------------------------------------------------------------------

    def visit(self, node: Node, upstream: Programs = ()) -> Programs:
        """Look into a node; return the programs that it runs. ``upstream``: those before it in a pipe."""
        kind = node.type
        if kind == "command":
            return self._command(node, (), upstream)
        if kind in _HOLDERS:
            return self._each(node.named_children, upstream)
        if kind in _LEAVES:
            if is_hiding(node.text or b""):
                self._doubt(node, "has a substitution that the parser does not see")
            return ()
        if kind in _LITERALS:
            return ()
        return self._special(node, kind, upstream)

    def _special(self, node: Node, kind: str, upstream: Programs) -> Programs:
        if kind == "pipeline":
            return self._pipeline(node, upstream)
        if kind == "redirected_statement":
            return self._redirected(node, upstream)
        if kind == "variable_assignment":
            self._assign(node)
            return self._each(node.named_children, upstream)
        if kind == "function_definition":
            return self._function(node, upstream)
        if kind == "expansion":
            if "@P" in node_text(node):
                self._doubt(node, "expands a variable as a prompt, which can run commands")
            return self._each(node.named_children, upstream)
        if kind in _REDIRECTS:
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
        redirects = [child for child in node.named_children if child.type in _REDIRECTS]
        bodies = [child for child in node.named_children if child.type not in _REDIRECTS]
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
        name = node_text(node.named_children[0]).partition("[")[0] if node.named_children else ""
        self._add(Assignment(name))

    # --- commands -----------------------------------------------------------------------------

    def _command(self, node: Node, redirects: Sequence[Node], upstream: Programs) -> Programs:
        self._budget.enter()
        reader = WordReader()
        words: list[Word] = []
        own_redirects = list(redirects)
        feeding: Programs = ()
        end = node.start_byte
        for child in node.children:
            kind = child.type
            start = child.start_byte
            if start - end > 1:
                self._check_gap(node, end, start)
            end = child.end_byte
            if kind == "word":  # most are
                words += reader.words(child)
            elif kind == "variable_assignment":
                feeding += self.visit(child, ())
            elif not child.is_named:
                if kind != "$":  # of $"…"
                    words.append(Word(kind, kind))
            elif kind in _REDIRECTS:
                own_redirects.append(child)
            elif kind == "subshell":
                feeding += self.visit(child, upstream)
            elif kind != "comment":
                words += reader.words(child)
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

    def _check_gap(self, node: Node, start: int, end: int) -> None:
        """The parser sometimes skips over a line break that ends a command for bash."""
        begin = node.start_byte
        if b"\n" in (node.text or b"")[start - begin : end - begin].replace(b"\\\n", b""):
            self._doubt(node, "has a line break where the parser sees none")

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
        nodes: Sequence[Node],
        upstream: Programs,
        reader: WordReader | None = None,
        words: list[Word] | None = None,
    ) -> tuple[list[Word | None], Programs, list[Node]]:
        """The inputs that the redirections give, programs that they run, and statements behind them.

        The parser puts what follows a here-document on its line inside the redirection: more words, more
        redirections, and the rest of a pipe or list.
        """
        inputs: list[Word | None] = []
        programs: Programs = ()
        behind: list[Node] = []
        own = reader or WordReader()
        for node in nodes:
            if node.type == "file_redirect":
                inputs += self._file(node, own)
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
                if words is None:
                    inputs += [None] if extra else []
                else:
                    words += extra
        if reader is None:
            programs += self._each(own.nested, upstream)
            for statement in behind:
                programs += self.visit(statement, upstream + programs)
            behind = []
        return inputs, programs, behind

    def _file(self, node: Node, reader: WordReader) -> list[Word | None]:
        operator = next((child.type for child in node.children if not child.is_named), "")
        targets = [
            word
            for child in node.named_children
            if child.type != "file_descriptor"
            for word in reader.words(child)
        ]
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


def _sources(words: Sequence[Word]) -> tuple[str, ...]:
    return tuple(word.source for word in words)
