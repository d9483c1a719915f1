"""All dashboards."""

from __future__ import annotations

from sapwood_dashboards.autoscaler import AUTOSCALER
from sapwood_dashboards.gateway import GATEWAY
from sapwood_dashboards.operator_program import OPERATOR
from sapwood_dashboards.overview import OVERVIEW
from sapwood_dashboards.prefix_routing import PREFIX_ROUTING
from sapwood_dashboards.radix_cache import RADIX_CACHE
from sapwood_dashboards.replicas import REPLICAS
from sapwood_dashboards.requests import REQUESTS
from sapwood_dashboards.scheduler import SCHEDULER

DASHBOARDS = (OVERVIEW, REQUESTS, RADIX_CACHE, SCHEDULER, REPLICAS, GATEWAY, PREFIX_ROUTING, AUTOSCALER, OPERATOR)
