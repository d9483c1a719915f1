//go:build tools

// Package tools names kwok, which plays nodes and pods without running anything.
package tools

import _ "sigs.k8s.io/kwok/cmd/kwok"
