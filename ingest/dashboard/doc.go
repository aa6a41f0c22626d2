// Package dashboard is the pages that people look at: the live list, one task
// in depth, activity, environments. It is rendered on the server and works
// without JavaScript; with it, pages follow what happens.
//
// It promises that a page shows nothing that the viewer could not read through
// the API, that every action goes through the API with the viewer's own
// credentials, that what a goal, a planner or a tool wrote is only ever shown
// as text, and that no page of another site can act for a viewer.
//
// It keeps nothing but log-in sessions, in memory: they end when the process
// does, after twelve hours, or when the key they were opened with is removed.
//
// assets/htmx holds htmx 4.0.1 and its SSE extension, as published in the npm
// package htmx.org, with their licence (0BSD).
package dashboard
