package main

import (
	"runtime"
	"runtime/debug"
	"sync"
)

// release is set by the linker: -X main.release=v1.2.3.
var release string

// version is the release, or what the Go toolchain knows of the build.
var version = sync.OnceValue(func() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
})

type versionCmd struct{ outputFlags }

// versionInfo is the version as -o json prints it.
type versionInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Run prints the version.
func (*versionCmd) Run(t *terminal) error {
	v := versionInfo{Version: version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Commit = s.Value
			case "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
	}
	if t.machine() {
		return t.document(v)
	}
	return t.printf("goalkeeper %s %s %s\n", v.Version, v.Go, v.Platform)
}
