//go:build tools

// Package tools names Jaeger's all-in-one program: receiver, store in memory and query API.
package tools

import _ "github.com/jaegertracing/jaeger/cmd/all-in-one"
