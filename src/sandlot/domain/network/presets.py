"""Presets of egress policies: the hosts of well-known registries, by name.

A preset has what its tools need for reading, and no more. Hosts on which anyone can publish are a way out for
data too, so ``packages`` has neither ``github`` nor ``huggingface``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_PYPI: Final = ("pypi.org", "files.pythonhosted.org")
_NPM: Final = ("registry.npmjs.org", "registry.yarnpkg.com")
_DEBIAN: Final = ("deb.debian.org", "security.debian.org", "snapshot.debian.org")
_CARGO: Final = ("crates.io", "index.crates.io", "static.crates.io")
_GO: Final = ("proxy.golang.org", "sum.golang.org")
_RUBY: Final = ("rubygems.org", "index.rubygems.org")
_MAVEN: Final = ("repo.maven.apache.org", "repo1.maven.org")
_CONDA: Final = ("conda.anaconda.org", "repo.anaconda.com")

PRESETS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "pypi": _PYPI,
        "npm": _NPM,
        "debian": _DEBIAN,
        "github": ("github.com", "api.github.com", "codeload.github.com", "*.githubusercontent.com"),
        "huggingface": ("huggingface.co", "*.huggingface.co", "hf.co", "*.hf.co"),
        "packages": (*_PYPI, *_NPM, *_DEBIAN, *_CARGO, *_GO, *_RUBY, *_MAVEN, *_CONDA),
    }
)
