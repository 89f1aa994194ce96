package faults

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
)

// Handler arms faults over HTTP, for callers on this machine only:
//
//	POST    {"step":"relay.sent","action":"crash"} and the other fields of Fault → 201
//	GET     → {"faults":[…]} with their hits
//	DELETE  → 204, everything disarmed
func (s *Set) Handler() http.Handler {
	// A web page that is open in a browser on this machine is a local caller too.
	sameOrigin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !loopback(r.RemoteAddr) {
			problem(w, http.StatusForbidden, "faults are armed from the same machine only")
			return
		}
		if err := sameOrigin.Check(r); err != nil {
			problem(w, http.StatusForbidden, err.Error())
			return
		}
		switch r.Method {
		case http.MethodPost:
			s.post(w, r)
		case http.MethodGet:
			reply(w, http.StatusOK, map[string]any{"faults": s.List()})
		case http.MethodDelete:
			s.Clear()
			w.WriteHeader(http.StatusNoContent)
		default:
			w.Header().Set("Allow", "GET, POST, DELETE")
			problem(w, http.StatusMethodNotAllowed, r.Method+" is not allowed here")
		}
	})
}

func (s *Set) post(w http.ResponseWriter, r *http.Request) {
	var f Fault
	in := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096))
	in.DisallowUnknownFields()
	if err := in.Decode(&f); err != nil {
		problem(w, http.StatusBadRequest, fmt.Sprintf("read fault: %v", err))
		return
	}
	f, err := s.Arm(f)
	if err != nil {
		problem(w, http.StatusBadRequest, err.Error())
		return
	}
	reply(w, http.StatusCreated, f)
}

func loopback(remote string) bool {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that went away
}

func problem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"title": http.StatusText(status), "status": status, "detail": detail})
}
