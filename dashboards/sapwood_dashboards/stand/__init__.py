"""Two engines, a gateway and a Prometheus, each a process, and a minute of load: dashboards and rules alive."""
