package dashboard

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"time"
)

//go:embed assets
var assetFiles embed.FS

// assets serves the embedded files. Their URLs carry a digest, so that browsers
// may keep them for good.
type assets struct {
	files map[string]asset // by path below /assets/
}

type asset struct {
	body      []byte
	mediaType string
	version   string
}

func newAssets() (*assets, error) {
	a := &assets{files: map[string]asset{}}
	types := map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
	err := fs.WalkDir(assetFiles, "assets", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		body, err := assetFiles.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		mediaType := "text/plain; charset=utf-8"
		for ext, t := range types {
			if strings.HasSuffix(path, ext) {
				mediaType = t
			}
		}
		sum := sha256.Sum256(body)
		a.files[strings.TrimPrefix(path, "assets/")] = asset{body: body, mediaType: mediaType, version: hex.EncodeToString(sum[:6])}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	return a, nil
}

// url is where a page finds an asset.
func (a *assets) url(name string) (string, error) {
	f, ok := a.files[name]
	if !ok {
		return "", fmt.Errorf("there is no asset %q", name)
	}
	return "/assets/" + name + "?v=" + f.version, nil
}

// ServeHTTP implements http.Handler.
func (a *assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, ok := a.files[strings.TrimPrefix(r.URL.Path, "/assets/")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.mediaType)
	if r.URL.Query().Get("v") == f.version {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.body))
}
