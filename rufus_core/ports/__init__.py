"""The protocols that rooms above and the outside implement, a file for each topic."""
