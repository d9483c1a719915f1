"""Sapwood's dashboards as data, what is written from them, and a load that shows them alive."""
