"""Problem generators, one a file; `rufus_core.data.catalogue` names them."""
