"""Commands of those who run a server or a fleet: its workers, its coordinators and its keys."""
