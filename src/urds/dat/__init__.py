"""uDAPL 1.2 in user space: `dat_*` calls and the objects behind them."""
