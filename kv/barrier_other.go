//go:build !linux

package kv

import "errors"

func syncFileSystem(uintptr) error {
	return errors.New("syncing one file system needs Linux; let the server sync every message instead")
}
