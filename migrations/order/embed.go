// Package order holds the migrations of the order database, for goose.
package order

import "embed"

// FS holds the migrations, one file each, named by their number.
//
//go:embed *.sql
var FS embed.FS
