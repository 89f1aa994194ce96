package outage

import (
	"net/http"
	"testing"
	"time"

	"example.com/baton/internal/provision"
	"example.com/baton/internal/system"
	"example.com/baton/internal/testenv"
)

// A broker user loses a right that its service needs. The service says so, for
// as long as it is so, and goes on when it has it again.
func TestRightMissing(t *testing.T) {
	t.Parallel()
	type rights struct{ configure, write, read string }
	ofOrder, ofInventory := provision.OrderUser("", ""), provision.InventoryUser("", "")
	for name, tt := range map[string]struct {
		of   string
		left rights
		code int
		says []string
	}{
		"order may not publish": {"order", rights{ofOrder.Configure, `^order\..*$`, ofOrder.Read},
			http.StatusOK, []string{"publisher degraded", "ACCESS_REFUSED", "orders.events", "permissions"}},
		"order may not consume": {"order", rights{ofOrder.Configure, ofOrder.Write, `^$`},
			http.StatusOK, []string{"consumer degraded", "ACCESS_REFUSED", "permissions"}},
		"inventory may not subscribe": {"inventory", rights{ofInventory.Configure, ofInventory.Write, `^inventory\..*$`},
			http.StatusServiceUnavailable, []string{"consumer unavailable", "ACCESS_REFUSED", "orders.events", "permissions"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := system.New(t, system.Options{})
			orderURL := testenv.VhostUser(t, s.Vhost, provision.OrderUser)
			inventoryURL := testenv.VhostUser(t, s.Vhost, provision.InventoryUser)
			order := s.StartOrder("ORDER_AMQP_URL=" + orderURL)
			inventory := s.StartInventory("INVENTORY_AMQP_URL=" + inventoryURL)
			eventuallyReady(t, 20*time.Second, order, http.StatusOK, "ok")
			p, address, all := order, orderURL, rights{ofOrder.Configure, ofOrder.Write, ofOrder.Read}
			if tt.of == "inventory" {
				p, address, all = inventory, inventoryURL, rights{ofInventory.Configure, ofInventory.Write, ofInventory.Read}
			}
			give := func(r rights) {
				t.Helper()
				if err := s.Broker.SetRights(t.Context(), address, r.configure, r.write, r.read); err != nil {
					t.Fatal(err)
				}
			}

			listed(t, s, 2)
			load := s.Load(perSecond)
			give(tt.left)
			if _, err := s.Broker.CloseConnections(t.Context()); err != nil { // rights hold for new channels
				t.Fatal(err)
			}
			testenv.Eventually(t, 20*time.Second, p.Name+" says what is wrong", func() error {
				r, err := ready(p)
				if err != nil {
					return err
				}
				return r.says(tt.says...)
			})
			stop := watch(t, p)
			pause(t, lasts(4*time.Second, time.Minute))
			silent := 0
			seen := stop()
			for _, r := range seen {
				if r.code != tt.code || r.says(tt.says...) != nil {
					silent++
				}
			}
			if silent > 0 {
				t.Errorf("/readyz of %s did not say what is wrong in %d of %d answers, such as: %s", p.Name, silent, len(seen), seen[len(seen)/2])
			}
			give(all)
			load.Stop()
			s.Settled()
			s.Exact()
			eventuallyReady(t, 20*time.Second, p, http.StatusOK, "ok")
		})
	}
}

// A password or a vhost is wrong. Each shows and is waited for, and what mends
// it mends the service, without a restart.
func TestWrongCredentials(t *testing.T) {
	t.Parallel()
	const wrong = "S3cr3tWrong"
	for name, tt := range map[string]struct {
		code int
		says []string
		// setting makes a setting of an order process that does not work, and mend
		// makes it work.
		setting func(t *testing.T, s *system.System) (setting string, mend func())
	}{
		"broker password": {http.StatusOK, []string{"publisher degraded", "403", "check the user, the password"},
			func(t *testing.T, s *system.System) (string, func()) {
				address := testenv.VhostUser(t, s.Vhost, provision.OrderUser)
				name := userOf(t, address)
				return "ORDER_AMQP_URL=" + as(t, address, name, wrong), func() {
					account := map[string]string{"password": wrong, "tags": ""}
					if err := s.Broker.Do(t.Context(), http.MethodPut, "/users/"+name, account, nil); err != nil {
						t.Fatal(err)
					}
				}
			}},
		"vhost": {http.StatusOK, []string{"publisher degraded", "vhost"},
			func(t *testing.T, s *system.System) (string, func()) {
				address := testenv.VhostUser(t, s.Vhost, provision.OrderUser)
				if err := s.Broker.Do(t.Context(), http.MethodDelete, "/permissions/{vhost}/"+userOf(t, address), nil, nil); err != nil {
					t.Fatal(err)
				}
				return "ORDER_AMQP_URL=" + address, func() {
					r := provision.OrderUser("", "")
					if err := s.Broker.SetRights(t.Context(), address, r.Configure, r.Write, r.Read); err != nil {
						t.Fatal(err)
					}
				}
			}},
		"database password": {http.StatusServiceUnavailable, []string{"database unavailable", "28P01"},
			func(t *testing.T, s *system.System) (string, func()) {
				role := serviceRole(t, s.OrderDB)
				return "ORDER_DATABASE_URL=" + as(t, s.OrderDB.Config().ConnString(), role, wrong), func() {
					serviceURL(t, s.OrderDB, wrong) // makes the wrong one right
				}
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := system.New(t, system.Options{})
			setting, mend := tt.setting(t, s)
			order := s.OrderProcess(setting)
			order.Launch()
			status := "degraded"
			if tt.code != http.StatusOK {
				status = "unavailable"
			}
			eventuallyReady(t, 20*time.Second, order, tt.code, status, tt.says...)
			load := s.Placing(20) // taken now, or when it is mended
			mend()
			s.StartInventory()
			load.Wait()
			s.Settled()
			s.Exact()
			eventuallyReady(t, 20*time.Second, order, http.StatusOK, "ok")
			wantNoSecret(t, wrong, order.Log())
		})
	}
}
