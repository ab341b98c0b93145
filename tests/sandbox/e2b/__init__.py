"""A server on loopback with the part of E2B's API that the `e2b` client uses, over machines that are namespaces."""
