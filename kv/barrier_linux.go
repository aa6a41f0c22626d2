package kv

import "golang.org/x/sys/unix"

// syncFileSystem writes everything on the file system of fd to its device.
func syncFileSystem(fd uintptr) error {
	for {
		err := unix.Syncfs(int(fd))
		if err != unix.EINTR {
			return err
		}
	}
}
