"""Which process is meant; see `rufus_core.lineage.process`."""

from rufus_core.lineage.process import ProcessId

__all__ = ["ProcessId"]
