package store

import "context"

// recentRuns is how many of the last runs, of all callers, RecentSessions looks at.
const recentRuns = 1000

// RecentSessions returns the sessions in which a caller has lately run code, last used first and at most limit of them. They
// may have been closed since.
func (s *Store) RecentSessions(ctx context.Context, caller string, limit int) (sessions []string, err error) {
	rows, err := s.db.QueryContext(ctx,
		`SELECT session FROM (SELECT session, caller, started FROM runs ORDER BY started DESC LIMIT ?)
		WHERE caller = ? GROUP BY session ORDER BY MAX(started) DESC LIMIT ?`, recentRuns, caller, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		sessions = append(sessions, id)
	}
	return sessions, rows.Err()
}
