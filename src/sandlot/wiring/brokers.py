"""Builds from settings what the sessions of a worker share: its secrets and its package cache."""

from __future__ import annotations

from sandlot.config.settings import ServerSettings
from sandlot.worker.network.broker.brokers import Brokers
from sandlot.worker.network.cache.package_cache import PackageCache
from sandlot.worker.network.dialer import Dialer
from sandlot.worker.network.options import ProxyOptions
from sandlot.worker.secrets.vault import Vault

PACKAGES_FOLDER = "packages"


def build_vault(settings: ServerSettings) -> Vault:
    """Its list ``masked`` is for the history and the recordings."""
    own = (settings.key, settings.e2b_key)
    return Vault(settings.data_dir.absolute(), also=tuple(key for key in own if key is not None))


def build_brokers(settings: ServerSettings, vault: Vault) -> Brokers:
    """Brokers that are not open yet. They open and close the vault too."""
    folder = settings.data_dir.absolute()
    packages, dialer = None, None
    if settings.package_cache:
        dialer = Dialer(ProxyOptions())
        packages = PackageCache(
            folder / PACKAGES_FOLDER, settings.package_cache_max_bytes, settings.package_registries, dialer
        )
    return Brokers(folder, settings.worker_id, vault, packages, dialer)
