"""SimCSE, unsupervised and supervised: the space sees `config`, trials run `method`."""
