"""PostgreSQL: the tables of schema `wicketgate` and every statement on them."""
