package proxy

// Check reports what New would find wrong with a service. The error names the field, in the configuration's words.
func (s Service) Check() error {
	_, err := newService(s, nil)
	return err
}
