//go:build tools

// Package tools names the Prometheus Operator, which writes a Prometheus's configuration from PodMonitors.
package tools

import _ "github.com/prometheus-operator/prometheus-operator/cmd/operator"
