//go:build unix

package tool

import (
	"os/exec"
	"syscall"
)

// ownGroup makes the command the leader of a new process group.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup kills a process group. One that is gone already is fine.
func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }
