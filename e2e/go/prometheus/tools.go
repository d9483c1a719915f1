//go:build tools

// Package tools names Prometheus; it is built with the discovery of Kubernetes and no other.
package tools

import _ "github.com/prometheus/prometheus/cmd/prometheus"
