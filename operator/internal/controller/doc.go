// Package controller carries out what the engine decides: it reads jobs and pods, and writes pods, services and
// statuses. It decides nothing itself.
package controller
