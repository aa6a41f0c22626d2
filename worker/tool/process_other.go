//go:build !unix

package tool

import "os/exec"

// ownGroup and killGroup do nothing where there are no process groups: what a
// server started itself is then its own to end.
func ownGroup(*exec.Cmd) {}

func killGroup(int) {}
