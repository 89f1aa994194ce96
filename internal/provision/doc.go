// Package provision sets up what the services need before they start:
// databases, roles, broker users and migrations. Local mode, compose and the
// tests all do it with this package.
//
// Everything in it may be done again, and by several processes at once.
package provision
