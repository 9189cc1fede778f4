//go:build tools

// Package peers names the program of upstream's that is built with the versions of this module.
package peers

import _ "sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin"
