// Package inventory holds the migrations of the inventory database, for goose.
package inventory

import "embed"

// FS holds the migrations, one file each, named by their number.
//
//go:embed *.sql
var FS embed.FS
