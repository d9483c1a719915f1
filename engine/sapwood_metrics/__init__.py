"""How every program of Sapwood makes its metrics from the contract and shows them to scrapers."""
